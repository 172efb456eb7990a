// Attention of tiles that keep few columns: softmax(scale * Q K^T under a mask) V, all of a tile's columns at once.
//
// A thread block has one tile of neighbouring rows of one head. The plan lists the distinct columns that any of them keeps;
// all of these keys and values are in shared memory at the same time, so that nothing has to be waited for twice.
//
//   list of columns, bits     shared memory
//   rows of the tile    -- 16-byte cp.async -->  | Q (rows x W)    |  -- ldmatrix ----> Q (16 x W, registers)
//                                                |                 |                    | mma
//   3 | 17 | 40 | ...   -- 16-byte cp.async -->  | K (columns x W) |  -- ldmatrix ----> scores (16 x 16 a step, float32)
//                                                |                 |                    | mask bits, maximum, exp2
//                       -- 16-byte cp.async -->  | V (columns x W) |  -- (.trans) -+    P (16 x 16 a step, registers)
//                                                                                  +--> | mma
//                                                                                       sum (16 x W, float32)
//
// A fragment of 16 rows belongs to kColumnWarps warps, each of which takes every kColumnWarps-th step of 16 columns: so a
// warp's chain is short where there are few tiles. What they found takes the place of Q and K:
//
//   of each warp: sums (16 x W), of each row the highest score and the total  --> a thread for each vector --> result
//
// Where a few tiles keep far more columns than the others, the blocks of a cluster, its ranks, are pieces of one of these
// tiles (kRanks). The plan lists items, a tile or a piece, one for each block; the clusters that share a tile come first.
// Each rank has some of the tile's rows to finish, and gives what it found of the others to those ranks:
//
//   rank 0   columns 0 to 127   | gives rows 1, 2, 3, 5, ... | waits for rows 0, 4, 8, ... of the others, merges, stores
//   rank 1   columns 128 to 255 | gives rows 0, 2, 3, 4, ... | the same of rows 1, 5, 9, ...
#pragma once

#include "single_copy.cuh"
#include "single_result.cuh"
#include "single_warp.cuh"

namespace atoffer::single {

// The block's rows of the result; a thread has the vector of channels that it copied.
template <class Shape>
struct Results {
    using Tile = Tiling<Shape>;
    using Element = typename Shape::Element;
    static constexpr int kStride = Shape::kMerged ? Tile::kWidth : Tile::kHeadDim;  // from row to row

    const Copier<Shape>& copier;
    const Element* value_bias;  // of the head
    Element* result;            // of the head's first row
    int first_row;
    char* shared;

    // What the block's own warps found is all.
    __device__ __forceinline__ void store_alone() const {
#pragma unroll
        for (int i = 0; i < Tile::kResultVectors; ++i) {
            const int place = copier.place(i);
            if (place >= Tile::kRows || place >= copier.rows) continue;
            store(place, part_of_warps<Shape>(shared, place, copier.vector));
        }
    }

    // Other ranks found something, too: each row is merged and stored by the rank that finishes it.
    __device__ __forceinline__ void store_shared(const Ranks<Shape>& ranks) const {
        Part<Shape> parts[Tile::kResultVectors];
        await_begun();
#pragma unroll
        for (int i = 0; i < Tile::kResultVectors; ++i) {
            const int place = copier.place(i);
            if (place >= Tile::kRows) continue;
            parts[i] = part_of_warps<Shape>(shared, place, copier.vector);
            if (!ranks.finishes(place)) ranks.give(parts[i], place, copier.vector);
        }
        ranks.await_given();
#pragma unroll
        for (int i = 0; i < Tile::kResultVectors; ++i) {
            const int place = copier.place(i);
            if (place >= Tile::kRows || place >= copier.rows || !ranks.finishes(place)) continue;
            store(place, ranks.all(parts[i], place, copier.vector));
        }
    }

private:
    __device__ __forceinline__ void store(int place, const Part<Shape>& part) const {
        const int channel = copier.vector * Tile::kVectorElements;
        const uint4 vector = packed<Shape>(part, value_bias + channel);
        *reinterpret_cast<uint4*>(result + (first_row + place) * kStride + channel) = vector;
    }
};

// tiles, counts: (mask_batches, kItems), the tile of each item, -1 for none, and its columns, which `columns`:
// (mask_batches, kItems, kColumns) lists first; words: (mask_batches, kItems, fragments, kWords, 32), see `lane_words` of
// gather_plan.py.
template <class Shape>
__device__ __forceinline__ void single_attention(const typename Shape::Element* qkv, const typename Shape::Element* bias,
                                                 const int* tiles, const int* counts, const int* columns,
                                                 const unsigned* words, typename Shape::Element* result) {
    using Tile = Tiling<Shape>;
    using Element = typename Shape::Element;
    constexpr int kPairs = Shape::kBatch * Tile::kHeads;
    extern __shared__ __align__(256) char memory[];
    const unsigned queries = shared_address(memory);

    const int rank = static_cast<int>(blockIdx.x) % Tile::kRanks, cluster = static_cast<int>(blockIdx.x) / Tile::kRanks;
    const int pair = cluster % kPairs, batch = pair / Tile::kHeads, head = pair % Tile::kHeads;
    const int item = cluster / kPairs * Tile::kRanks + rank;
    const int planned = (Shape::kMaskBatches == 1 ? 0 : batch) * Tile::kItems + item;
    const bool shares = Tile::kRanks > 1 && item < Tile::kSharedItems;
    const int first_row = tiles[planned] * Tile::kRows;
    if (Tile::kRanks > 1 && first_row < 0) return;  // of a cluster that shares a tile every rank, or none
    const int head_at = batch * Tile::kSeqLen * Tile::kTokenStride + head * Tile::kHeadDim;
    const Copier<Shape> copier(head_at, first_row, columns + planned * Tile::kColumns, counts[planned], queries);
    Warp<Shape> warp(words + planned * Tile::kFragments * Tile::kWords * kWarpSize);
    const Ranks<Shape> ranks{memory, rank};
    if (shares) ranks.begin();
    wait_for_inputs();
    let_next_begin();

    copier.copy_queries(qkv);
    copier.copy_keys(qkv);
    commit_copies();
    copier.copy_values(qkv);
    commit_copies();
    const Element* head_bias = bias + head * Tile::kHeadDim;
    wait_copies<1>();
    __syncthreads();
    if (shares) ranks.expect();
    warp.load_queries(queries, head_bias);
    warp.attend(queries + Tile::kQueryBytes);
    wait_copies<0>();
    __syncthreads();  // values are there; nobody needs queries and keys any more
    warp.add_values(queries + Tile::kValuesAt);
    warp.leave(Found<Shape>(memory, threadIdx.x / kWarpSize));
    __syncthreads();

    Element* own = result + (Shape::kMerged ? batch * Tile::kSeqLen * Tile::kWidth + head * Tile::kHeadDim
                                            : pair * Tile::kSeqLen * Tile::kHeadDim);
    const Results<Shape> results{copier, head_bias + 2 * Tile::kWidth, own, first_row, memory};
    if (shares) {
        results.store_shared(ranks);
    } else {
        results.store_alone();
    }
}

}  // namespace atoffer::single
