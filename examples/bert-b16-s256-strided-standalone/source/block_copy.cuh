// Block attention, copies: device memory to the ring.
#pragma once

#include "block_layout.cuh"

namespace atoffer::block {

// One thread's part: always the same 8 channels, of every kStep-th column.
template <class Shape>
struct Copier {
    using Block = Blocking<Shape>;
    using Element = typename Shape::Element;
    static constexpr int kStep = Block::kCopyThreads / Block::kRowVectors;
    static constexpr int kCopies = Block::kColumns / kStep;
    static_assert(kStep % 8 == 0, "a thread's columns have the same place in the swizzle's pattern");
    static_assert(kWordBits % kStep == 0, "a thread's columns have fixed bits");

    static constexpr int kPanelVectors = kPanelElements / kVectorElements;

    Ring<Shape> ring;
    const Element* qkv;
    int column, vector;
    // Where the thread's channels begin, of row `column` of the tile's queries; and of column `column` of the next
    // block's keys, where a rule says what is needed, else of the first block's.
    int query_at, key_at;
    unsigned first_query, first_key;  // addresses of where these vectors come, keys in the first stage
    RingPosition<Block::kStages> place;
    // Where a rule says what is needed: the first column of the block to be copied next, and that before which all are
    // needed.
    int first_column, end;
    // Where lists do: the block to be copied next, the one after, and where that after them stands.
    Entry<Shape> entry, next_entry;
    const Entry<Shape>* list;

    __device__ __forceinline__ void start(Ring<Shape> buffers, int thread, const Element* tensor,
                                          const Task<Shape>& task, int rank) {
        ring = buffers;
        column = thread / Block::kRowVectors;
        vector = thread % Block::kRowVectors;
        qkv = tensor;
        const int own = column * Block::kTokenStride + vector * kVectorElements;
        key_at = task.head_at() + Block::kWidth + own;
        if constexpr (Block::kReach == kListed) {
            list = task.entries + rank;
            entry = list[0];
            next_entry = list[Block::kRanks];
            list += 2 * Block::kRanks;
        } else {
            first_column = rank * Block::kColumns;
            key_at += first_column * Block::kTokenStride;
            end = task.needed_before(Block::kRows);
        }
        first_key = ring.keys(0) + offset(Block::kPanelBytes);
        settle(key_at);
        settle(first_key);
        if constexpr (Block::kCopiesQueries) {
            query_at = task.queries_at() + own;
            first_query = ring.base + offset(Block::kQueryPanelBytes);
            settle(query_at);
            settle(first_query);
        }
    }

    // The tile's queries, where products take them from shared memory as they are; they are there when the first keys
    // are. `rows` are left in the sequence: those beyond it become zeros.
    __device__ __forceinline__ void copy_queries(int rows) const {
        const bool whole = Block::kSeqLen % Block::kRows == 0 || rows >= Block::kRows;
        const Element* from = qkv + query_at;
#pragma unroll
        for (int row = 0; row < Block::kRows; row += kStep) {
            const unsigned panel = row / kWarpgroupRows * Block::kPanels * Block::kQueryPanelBytes;
            const unsigned to = first_query + panel + row % kWarpgroupRows * kPanelRowBytes;
            const bool exists = whole || column + row < rows;
            copy_async<kVectorBytes>(to, exists ? from + row * Block::kTokenStride : qkv, exists);
        }
    }

    // Begins to copy the next block as soon as its buffer is free.
    __device__ __forceinline__ void copy() {
        wait_phase(ring.emptied(place.at), place.parity ^ 1);
        copy_to_empty();
    }

    // The same where the buffer was never used.
    __device__ __forceinline__ void copy_to_empty() {
        const unsigned to = first_key + place.at * 2 * Block::kMatrixBytes;
        copy_matrix(to, 0);
        arrive_with_copies(ring.keys_here(place.at));
        copy_matrix(to + Block::kMatrixBytes, Block::kWidth);
        arrive_with_copies(ring.values_here(place.at));
        place.advance();
        if constexpr (Block::kReach == kListed) {
            entry = next_entry;
            next_entry = *list;
            list += Block::kRanks;
        } else {
            first_column += Block::kRanks * Block::kColumns;
            key_at += Block::kRanks * Block::kColumns * Block::kTokenStride;
        }
    }

private:
    // Byte offset of the thread's first vector in a matrix of panels of so many bytes.
    __device__ __forceinline__ unsigned offset(int panel_bytes) const {
        return vector / kPanelVectors * panel_bytes + panel_offset(column, vector % kPanelVectors);
    }

    // Keys, or values, which lie so many elements further.
    __device__ __forceinline__ void copy_matrix(unsigned to, int apart) const {
        const Element* from = qkv + key_at + apart;
        bool whole = Block::kAlwaysWhole;
        if constexpr (Block::kReach == kListed) {
            from += entry.number * Block::kColumns * Block::kTokenStride;
            whole = entry.bitmap < 0;
        } else if constexpr (!Block::kAlwaysWhole) {
            whole = first_column + Block::kColumns <= end;
        }
        if (whole) {
            copy_columns(to, from);
        } else {
            copy_wanted(to, from);
        }
    }

    __device__ __forceinline__ void copy_columns(unsigned to, const Element* from) const {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            copy_async<kVectorBytes>(to + i * kStep * kPanelRowBytes, from + i * kStep * Block::kTokenStride);
        }
    }

    // Columns that no row of the tile keeps, those beyond the sequence among them, become zeros and are not read.
    __device__ __forceinline__ void copy_wanted(unsigned to, const Element* from) const {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            const bool wants = Block::kReach == kListed
                                   ? entry.wanted[i * kStep / kWordBits] >> (i * kStep % kWordBits + column) & 1
                                   : first_column + column + i * kStep < end;
            const Element* column_from = wants ? from + i * kStep * Block::kTokenStride : qkv;
            copy_async<kVectorBytes>(to + i * kStep * kPanelRowBytes, column_from, wants);
        }
    }
};

}  // namespace atoffer::block
