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
    static constexpr int kCopies = (Block::kColumns + kStep - 1) / kStep;
    static_assert(kStep % 8 == 0, "a thread's columns have the same place in the swizzle's pattern");
    static_assert(kWordBits % kStep == 0, "a thread's columns have fixed bits");

    Ring<Shape> ring;
    const Element* head;
    const Element* keys;  // the thread's channels of column `column`; values lie kWidth elements further
    const int2* list;     // the next entry to be read
    const unsigned* bitmaps;
    const unsigned* needed;
    int thread, column;
    unsigned to;             // byte offset of the thread's first vector in a matrix
    int2 entry, next_entry;  // of the block to be copied next, and the one after: its number, its bitmap's or -1
    unsigned wanted[Block::kRowWords];  // columns of the block to be copied next that any row of the tile keeps
    Place<Block::kStages> place;

    __device__ __forceinline__ void start(Ring<Shape> buffers, int copy_thread, const Element* head_queries,
                                          const int2* blocks, const unsigned* plan_bitmaps,
                                          const unsigned* plan_needed) {
        ring = buffers;
        thread = copy_thread;
        column = thread / Block::kRowVectors;
        const int vector = thread % Block::kRowVectors;
        constexpr int kPanelVectors = kPanelElements / kVectorElements;
        to = vector / kPanelVectors * Block::kPanelBytes + panel_offset(column, vector % kPanelVectors);
        head = head_queries;
        keys = head + Block::kWidth + column * Block::kTokenStride + vector * kVectorElements;
        bitmaps = plan_bitmaps;
        needed = plan_needed;
        list = blocks + 2;
        entry = blocks[0];
        next_entry = blocks[1];
        fetch_wanted();
    }

    __device__ __forceinline__ void fetch_wanted() {
        if (entry.y < 0) return;
#pragma unroll
        for (int w = 0; w < Block::kRowWords; ++w) wanted[w] = needed[entry.y * Block::kRowWords + w];
    }

    __device__ __forceinline__ bool covers(int i) const {
        return Block::kColumns % kStep == 0 || column + i * kStep < Block::kColumns;
    }

    // Begins to copy the next block as soon as its buffer is free.
    __device__ __forceinline__ void copy() {
        wait_phase(ring.emptied(place.stage), place.parity ^ 1);
        const unsigned keys_to = ring.keys(place.stage) + to;
        const Element* from = keys + entry.x * (Block::kColumns * Block::kTokenStride);
        if (entry.y < 0) {
            copy_columns(keys_to, from);
            arrive_with_copies(ring.keys_here(place.stage));
            copy_columns(keys_to + Block::kMatrixBytes, from + Block::kWidth);
        } else {
            copy_bitmap();
            copy_wanted(keys_to, from);
            arrive_with_copies(ring.keys_here(place.stage));
            copy_wanted(keys_to + Block::kMatrixBytes, from + Block::kWidth);
        }
        arrive_with_copies(ring.values_here(place.stage));
        place.advance();
        entry = next_entry;
        fetch_wanted();
        next_entry = *list++;
    }

    __device__ __forceinline__ void copy_columns(unsigned stage, const Element* from) const {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            if (!covers(i)) continue;
            copy_async<kVectorBytes>(stage + i * kStep * kPanelRowBytes, from + i * kStep * Block::kTokenStride);
        }
    }

    // Columns that no row of the tile keeps, those beyond the sequence among them, become zeros and are not read.
    __device__ __forceinline__ void copy_wanted(unsigned stage, const Element* from) const {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            if (!covers(i)) continue;
            const bool wants = wanted[i * kStep / kWordBits] >> (i * kStep % kWordBits + column) & 1;
            const Element* column_from = wants ? from + i * kStep * Block::kTokenStride : head;
            copy_async<kVectorBytes>(stage + i * kStep * kPanelRowBytes, column_from, wants);
        }
    }

    __device__ __forceinline__ void copy_bitmap() const {
        const char* from = reinterpret_cast<const char*>(bitmaps) + entry.y * Block::kBitmapBytes;
#pragma unroll
        for (int at = thread * kVectorBytes; at < Block::kBitmapBytes; at += Block::kCopyThreads * kVectorBytes) {
            copy_async<kVectorBytes>(ring.bitmap(place.stage) + at, from + at);
        }
    }
};

}  // namespace atoffer
