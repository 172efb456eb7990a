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

    Ring<Shape> ring;
    const Element* head;
    const Element* keys;  // the thread's channels of column `column`; values lie kWidth elements further
    int column;
    unsigned to;  // byte offset of the thread's first vector in a matrix
    Place<Block::kStages> place;
    // Where a rule says what is needed: the block to be copied next, and the column before which all are needed.
    int number, end;
    // Where lists do: the block to be copied next, the one after, and where that after them stands.
    Entry<Shape> entry, next_entry;
    const Entry<Shape>* list;

    __device__ __forceinline__ void start(Ring<Shape> buffers, int thread, const Element* head_queries,
                                          const Task<Shape>& task, int split) {
        ring = buffers;
        column = thread / Block::kRowVectors;
        const int vector = thread % Block::kRowVectors;
        constexpr int kPanelVectors = kPanelElements / kVectorElements;
        to = vector / kPanelVectors * Block::kPanelBytes + panel_offset(column, vector % kPanelVectors);
        head = head_queries;
        keys = head + Block::kWidth + column * Block::kTokenStride + vector * kVectorElements;
        if constexpr (Block::kReach == kListed) {
            list = task.entries + split;
            entry = list[0];
            next_entry = list[Block::kSplits];
            list += 2 * Block::kSplits;
        } else {
            number = split;
            end = task.needed_before(Block::kRows);
        }
    }

    // Begins to copy the next block as soon as its buffer is free.
    __device__ __forceinline__ void copy() {
        wait_phase(ring.emptied(place.stage), place.parity ^ 1);
        copy_to_empty();
    }

    // The same where the buffer was never used.
    __device__ __forceinline__ void copy_to_empty() {
        copy_matrix(ring.keys(place.stage), 0);
        arrive_with_copies(ring.keys_here(place.stage));
        copy_matrix(ring.values(place.stage), Block::kWidth);
        arrive_with_copies(ring.values_here(place.stage));
        place.advance();
        if constexpr (Block::kReach == kListed) {
            entry = next_entry;
            next_entry = *list;
            list += Block::kSplits;
        } else {
            number += Block::kSplits;
        }
    }

    // Keys, or values, which lie `offset` elements further.
    __device__ __forceinline__ void copy_matrix(unsigned matrix, int offset) const {
        const int first = (Block::kReach == kListed ? entry.number : number) * Block::kColumns;
        const Element* from = keys + first * Block::kTokenStride + offset;
        const bool whole = Block::kReach == kListed ? entry.bitmap < 0 : first + Block::kColumns <= end;
        if (whole) {
            copy_columns(matrix + to, from);
        } else {
            copy_wanted(matrix + to, from, first);
        }
    }

    __device__ __forceinline__ void copy_columns(unsigned stage, const Element* from) const {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            copy_async<kVectorBytes>(stage + i * kStep * kPanelRowBytes, from + i * kStep * Block::kTokenStride);
        }
    }

    // Columns that no row of the tile keeps, those beyond the sequence among them, become zeros and are not read.
    __device__ __forceinline__ void copy_wanted(unsigned stage, const Element* from, int first) const {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            const bool wants = Block::kReach == kListed
                                   ? entry.wanted[i * kStep / kWordBits] >> (i * kStep % kWordBits + column) & 1
                                   : first + column + i * kStep < end;
            const Element* column_from = wants ? from + i * kStep * Block::kTokenStride : head;
            copy_async<kVectorBytes>(stage + i * kStep * kPanelRowBytes, column_from, wants);
        }
    }
};

}  // namespace atoffer
