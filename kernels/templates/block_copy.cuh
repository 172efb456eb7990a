// Block attention, copies: device memory to the ring.
#pragma once

#include "block_layout.cuh"

namespace atoffer {

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
    static constexpr int kHalfway = Block::kWidth / 2;  // from keys or values to the middle between them

    Ring<Shape> ring;
    const Element* qkv;
    // Where the thread's channels of column `column` begin, halfway between keys and values: of the next block where a
    // rule says what is needed, else of the first. So both are near enough for an instruction's offset.
    int middle;
    int queries;  // where its channels of row `column` of the tile's queries begin
    int column, vector;
    unsigned first_stage, first_query;  // addresses of the thread's first vector in the first keys, and in the queries
    Place<Block::kStages> place;
    // Where a rule says what is needed: the block to be copied next, and the column before which all are needed.
    int number, end;
    // Where lists do: the block to be copied next, the one after, and where that after them stands.
    Entry<Shape> entry, next_entry;
    const Entry<Shape>* list;

    __device__ __forceinline__ void start(Ring<Shape> buffers, int thread, const Element* tensor,
                                          const Task<Shape>& task, int split) {
        ring = buffers;
        column = thread / Block::kRowVectors;
        vector = thread % Block::kRowVectors;
        qkv = tensor;
        const int own = task.queries_at() + column * Block::kTokenStride + vector * kVectorElements;
        middle = own + Block::kWidth + kHalfway;
        if constexpr (Block::kReach == kListed) {
            list = task.entries + split;
            entry = list[0];
            next_entry = list[Block::kSplits];
            list += 2 * Block::kSplits;
        } else {
            number = split;
            middle += split * Block::kColumns * Block::kTokenStride;
            end = task.needed_before(Block::kRows);
        }
        first_stage = ring.keys(0) + offset(Block::kPanelBytes);
        settle(middle);
        settle(first_stage);
        if constexpr (Block::kCopiesQueries) {
            queries = own + task.first_row() * Block::kTokenStride;
            first_query = ring.base + offset(Block::kQueryPanelBytes);
            settle(queries);
            settle(first_query);
        }
    }

    // The tile's queries, where products take them from shared memory as they are; they are there when the first keys
    // are. `rows` are left in the sequence: those beyond it become zeros.
    __device__ __forceinline__ void copy_queries(int rows) const {
        const Element* from = qkv + queries;
        if (Block::kSeqLen % Block::kRows == 0 || rows >= Block::kRows) {
#pragma unroll
            for (int row = 0; row < Block::kRows; row += kStep) {
                copy_async<kVectorBytes>(query_vector(row), from + row * Block::kTokenStride);
            }
        } else {
#pragma unroll
            for (int row = 0; row < Block::kRows; row += kStep) {
                const bool exists = column + row < rows;
                copy_async<kVectorBytes>(query_vector(row), exists ? from + row * Block::kTokenStride : qkv, exists);
            }
        }
    }

    // Begins to copy the next block as soon as its buffer is free.
    __device__ __forceinline__ void copy() {
        wait_phase(ring.emptied(place.stage), place.parity ^ 1);
        copy_to_empty();
    }

    // The same where the buffer was never used.
    __device__ __forceinline__ void copy_to_empty() {
        const unsigned to = first_stage + place.stage * 2 * Block::kMatrixBytes;
        copy_matrix(to, -kHalfway);
        arrive_with_copies(ring.keys_here(place.stage));
        copy_matrix(to + Block::kMatrixBytes, kHalfway);
        arrive_with_copies(ring.values_here(place.stage));
        place.advance();
        if constexpr (Block::kReach == kListed) {
            entry = next_entry;
            next_entry = *list;
            list += Block::kSplits;
        } else {
            number += Block::kSplits;
            middle += Block::kSplits * Block::kColumns * Block::kTokenStride;
        }
    }

private:
    // Byte offset of the thread's first vector in a matrix of panels of so many bytes.
    __device__ __forceinline__ unsigned offset(int panel_bytes) const {
        return vector / kPanelVectors * panel_bytes + panel_offset(column, vector % kPanelVectors);
    }

    // Where its vector of that row, a multiple of kStep further, comes.
    __device__ __forceinline__ unsigned query_vector(int row) const {
        return first_query + row / kWarpgroupRows * Block::kPanels * Block::kQueryPanelBytes +
               row % kWarpgroupRows * kPanelRowBytes;
    }

    // Of the block that `middle` is in.
    __device__ __forceinline__ int first_column() const {
        return Block::kReach == kListed ? 0 : number * Block::kColumns;
    }

    // Keys, or values, which lie so many elements from the middle.
    __device__ __forceinline__ void copy_matrix(unsigned to, int apart) const {
        const Element* from = qkv + middle + apart;
        bool whole = Block::kAlwaysWhole;
        if constexpr (Block::kReach == kListed) {
            from += entry.number * Block::kColumns * Block::kTokenStride;
            whole = entry.bitmap < 0;
        } else if constexpr (!Block::kAlwaysWhole) {
            whole = first_column() + Block::kColumns <= end;
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
                                   : first_column() + column + i * kStep < end;
            const Element* column_from = wants ? from + i * kStep * Block::kTokenStride : qkv;
            copy_async<kVectorBytes>(to + i * kStep * kPanelRowBytes, column_from, wants);
        }
    }
};

}  // namespace atoffer
