// Attention by whole blocks of key columns on Hopper's warpgroup products: softmax(scale * Q K^T under a mask) V.
//
// A thread block, or several, have a (row tile, head, sequence). Its list names the column blocks that any row of the tile keeps, in
// order, and which of them need a bitmap; the others are kept whole. Nothing else of K and V is read. Where a rule gives
// the blocks (kReach), copies do not wait for the list.
//
//   list: 0, 1, 3 + bitmap                 shared memory, kStages buffers
//   device memory                          +------------+------------+
//   K, V rows ------ 16-byte cp.async ---> | K (C x W)  | V (C x W)  |   panels, see panels.cuh
//                                          +------------+------------+
//   Q (64 x W a warpgroup) -- product --> scores (64 x C, float32)   |  transposed
//                                              | bitmap, running maximum, exp2
//                                              v                         v
//                                           P (64 x C, registers) -- product --> sum (64 x W, float32)
//
// Each warpgroup owns 64 rows, a slice of the tile. While the tensor cores multiply P of one block by its values, the
// threads turn the scores of the next block into probabilities:
//
//   products   | scores 1 | sum 0  | scores 2 | sum 1  | ...
//   threads    |          | softmax 1         | softmax 2 ...
//
// Or it owns two slices, A and B (kHalves), for which a block of keys and values is copied once. Then the products of one
// run beside the softmax of the other:
//
//   products   | scores A1 | scores B1 | sum A0, sum B0          | scores A2 | ...
//   threads    |           | softmax A1            | softmax B1  |           | ...
//
// Copies are the job of all threads, or of a warpgroup of its own (kLoader), whose registers the others take over. With
// a loader, warpgroups take turns in issuing products, so that one's softmax runs beside another's products.
//
// Where there are few tiles, several warpgroups, its ranks, share a tile of 64 rows (kRanks): of one thread block, or of those
// of a cluster (kCluster). Each has a ring of its own, and takes every kRanks-th column block. Then each has some warps'
// rows to finish, and gives what it found of the others' to those ranks:
//
//   rank 0   column blocks 0, 4, ... | gives rows 16 to 63        | waits for rows 0 to 15 of the others, merges, stores
//   rank 1   column blocks 1, 5, ... | gives rows 0 to 15, 32 ... | the same of rows 16 to 31
//   ...
//
// The biases of queries and values are added; that of keys shifts all scores of a row alike, which softmax undoes.
#pragma once

#include "block_copy.cuh"
#include "block_walk.cuh"

namespace atoffer {

// One thread's part in a task.
template <class Shape>
struct BlockAttention {
    using Block = Blocking<Shape>;
    using Element = typename Shape::Element;
    static constexpr int kHalves = Block::kHalves;

    int role, rank;  // the number of the thread's warpgroup in its block, and, where several share rows, among those
    Ring<Shape> ring;
    Task<Shape> task;
    Copier<Shape> copier;
    Slice<Shape> slices[kHalves];
    typename Slice<Shape>::Fetched fetched[kHalves];
    const Element* head_bias;
    int rows, blocks;    // rows left in the sequence; column blocks of this rank
    int2 first_bitmaps;  // of the first two blocks

    __device__ __forceinline__ bool copies() const { return !Shape::kLoader || role == 0; }
    __device__ __forceinline__ bool computes() const { return !Shape::kLoader || role > 0; }

    // What needs no input.
    __device__ __forceinline__ void prepare(const Element* qkv, const Element* bias, const Entry<Shape>* lists) {
        extern __shared__ char shared[];
        const unsigned base = (shared_address(shared) + kPanelAlignment - 1) / kPanelAlignment * kPanelAlignment;
        role = __shfl_sync(kFullWarp, threadIdx.x / kWarpgroupSize, 0);
        rank = Block::kRanks > 1 ? static_cast<int>(blockIdx.x) % Block::kCluster * Block::kGroups + role : 0;
        ring = {base + (Block::kRanks > 1 ? role * Block::kRingBytes : 0)};
        task.read(lists, static_cast<int>(blockIdx.x) / Block::kCluster);
        head_bias = bias + task.head * Block::kHeadDim;
        if constexpr (Shape::kAddBias) {
            prefetch_vector<Block::kHeadDim * sizeof(Element)>(head_bias);
            prefetch_vector<Block::kHeadDim * sizeof(Element)>(head_bias + 2 * Block::kWidth);
        }
        rows = Block::kSeqLen - task.first_row();
        blocks = (task.count - rank + Block::kRanks - 1) / Block::kRanks;
        if (copies()) copier.start(ring, threadIdx.x % Block::kCopyThreads, qkv, task, rank);
        if (computes()) {
#pragma unroll
            for (int half = 0; half < kHalves; ++half) {
                const int slice = Block::kRanks > 1 ? 0 : (role - Shape::kLoader) * kHalves + half;
                slices[half].start(ring.base, slice, task);
            }
            first_bitmaps = make_int2(task.entries[rank].bitmap, task.entries[rank + Block::kRanks].bitmap);
        }
        if (threadIdx.x % (Block::kRanks > 1 ? kWarpgroupSize : Block::kThreads) == 0) ring.initialise();
        __syncwarp();
        if constexpr (Block::kCluster > 1) announce_begun();
        __syncthreads();
    }

    // Says whether this thread computes: one that only copies has done so.
    __device__ __forceinline__ bool begin(const Element* qkv) {
        if constexpr (Block::kCopiesQueries) {
            if (copies() && blocks > 0) copier.copy_queries(rows);
        } else if (computes()) {
#pragma unroll
            for (int half = 0; half < kHalves; ++half) slices[half].fetch_queries(fetched[half], qkv, head_bias, rows);
        }
        if constexpr (Shape::kLoader) {
            if (!computes()) {
                shrink_registers<Shape::kLoaderRegisters>();
                for (int i = 0; i < blocks; ++i) copier.copy();
                finish_copies();  // the thread's copies must not outlive it
                return false;
            }
            grow_registers<Shape::kRegisters>();
        } else {
#pragma unroll
            for (int i = 0; i < Block::kAhead; ++i) {
                if (i < blocks) copier.copy_to_empty();
            }
        }
        if constexpr (!Block::kCopiesQueries) {
#pragma unroll
            for (int half = 0; half < kHalves; ++half) slices[half].place_queries(fetched[half]);
        }
        return true;
    }

    __device__ __forceinline__ void attend(const unsigned* bitmaps) {
        if (blocks == 0) return;
        const auto feed = [&](int i) {
            const int next = i + Block::kAhead;
            if (!Shape::kLoader && next < blocks) copier.copy();
        };
        int2 counts = make_int2(blocks, blocks);
        if constexpr (Block::kRanks == 1) {
            counts = make_int2(task.count_of(slices[0].number), task.count_of(slices[kHalves - 1].number));
        }
        Walk<Shape, decltype(feed)> walk{slices, ring, task.entries + rank, bitmaps, feed, first_bitmaps.y};
        walk.run(counts, first_bitmaps.x);
    }

    __device__ __forceinline__ void store(Element* result) {
        constexpr int kStride = Shape::kMerged ? Block::kWidth : Block::kHeadDim;
        // A warp's own queries are nobody else's; stages are everybody's until all products have ended.
        if constexpr (!Shape::kSharedQueries) {
            synchronise_some<Block::kRingGroups * kWarpgroupSize>(Block::kStoreBarrier + (Block::kRanks > 1 ? role : 0));
        }
        if constexpr (Block::kRanks > 1) {
            if (!share_rows(slices[0], ring, rank, threadIdx.x % kWarpgroupSize / kWarpSize)) return;
        }
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
            slices[half].store(result + task.result_at(), kStride, head_bias + 2 * Block::kWidth, rows);
        }
    }
};

// qkv: (batch, seq_len, 3, heads, head_dim). bias: (3, heads, head_dim), read if kAddBias.
// lists: (mask_batches, tiles, kListEntries) entries: the row tile and the number of its blocks; the blocks; then
// kEndEntries or more of no bitmap. The longest lists come first.
// bitmaps: (bitmaps, kRows, kColumns / 32).
// result: (batch, seq_len, heads, head_dim) if kMerged, else (batch, heads, seq_len, head_dim).
template <class Shape>
__device__ __forceinline__ void block_attention(const typename Shape::Element* qkv, const typename Shape::Element* bias,
                                                const Entry<Shape>* lists, const unsigned* bitmaps,
                                                typename Shape::Element* result) {
    BlockAttention<Shape> attention;
    attention.prepare(qkv, bias, lists);  // while the kernel before this one ends
    wait_for_inputs();
    let_next_begin();
    if (!attention.begin(qkv)) return;
    attention.attend(bitmaps);
    attention.store(result);
}

}  // namespace atoffer
