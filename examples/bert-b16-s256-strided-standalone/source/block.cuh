// Attention by whole blocks of key columns on Hopper's warpgroup products: softmax(scale * Q K^T under a mask) V.
//
// A thread block owns (row tile, head, sequence). Its list names the column blocks that any row of the tile keeps, in
// order, and which of them need a bitmap; the others are kept whole. Nothing else of K and V is read.
//
//   list: 0, 1, 3 + bitmap                 shared memory, kStages buffers
//   device memory                          +------------+------------+---------+
//   K, V rows ------ 16-byte cp.async ---> | K (C x W)  | V (C x W)  | bitmap  |   panels, see wgmma.cuh
//                                          +------------+------------+---------+
//   Q (64 x W a warpgroup) -- product --> scores (64 x C, float32) <-+   |  transposed
//                                              | bitmap, running maximum, exp2
//                                              v                         v
//                                           P (64 x C, registers) -- product --> sum (64 x W, float32)
//
// Each warpgroup owns 64 rows. While the tensor cores multiply P of one block by its values, the threads turn the
// scores of the next block into probabilities:
//
//   products   | scores 1 | sum 0  | scores 2 | sum 1  | ...
//   threads    |          | softmax 1         | softmax 2 ...
//
// Copies are the job of all threads, or of a warpgroup of its own (kLoader), whose registers the others take over. With
// a loader, warpgroups take turns in issuing products, so that one's softmax runs beside another's products.
//
// The biases of queries and values are added; that of keys shifts all scores of a row alike, which softmax undoes.
#pragma once

#include "block_copy.cuh"
#include "block_warpgroup.cuh"

namespace atoffer {

// All `count` blocks of a list, for one warpgroup. `feed(i)` is called once for each block i, while products run.
template <class Shape, class Feed>
__device__ __forceinline__ void attend(Warpgroup<Shape>& warpgroup, const Ring<Shape>& ring, const int2* blocks,
                                       int count, Feed feed) {
    using Block = Blocking<Shape>;
    const auto release = [&](int stage) {
        if (warpgroup.lane == 0) arrive(ring.emptied(stage));
    };
    Place<Block::kStages> here;
    int bitmap = blocks[0].y, next_bitmap = blocks[1].y;

    wait_phase(ring.keys_here(here.stage), here.parity);
    fence_shared();
    warpgroup.issue_scores(ring.keys(here.stage));
    feed(0);
    wait_products<0>();
    pin(warpgroup.scores);
    float factor[2];
    if (bitmap >= 0) warpgroup.mask_scores(ring.bitmap(here.stage));
    warpgroup.soften(factor);
    warpgroup.pack_probabilities();
    Turns<Shape>::begin(warpgroup.group);

    for (int i = 1; i < count; ++i) {
        Place<Block::kStages> next = here;
        next.advance();
        bitmap = next_bitmap;
        next_bitmap = blocks[i + 1].y;
        wait_phase(ring.keys_here(next.stage), next.parity);
        wait_phase(ring.values_here(here.stage), here.parity);
        fence_shared();
        Turns<Shape>::await(warpgroup.group);
        warpgroup.issue_scores(ring.keys(next.stage));
        warpgroup.issue_sum(ring.values(here.stage));
        Turns<Shape>::pass_on(warpgroup.group);
        feed(i);
        wait_products<1>();
        pin(warpgroup.scores);
        if (bitmap >= 0) warpgroup.mask_scores(ring.bitmap(next.stage));
        warpgroup.soften(factor);
        warpgroup.finish_softmax();
        wait_products<0>();
        pin(warpgroup.sum);
        pin(warpgroup.probabilities);
        __syncwarp();
        release(here.stage);
        warpgroup.rescale(factor);
        warpgroup.pack_probabilities();
        here = next;
    }
    wait_phase(ring.values_here(here.stage), here.parity);
    fence_shared();
    warpgroup.issue_sum(ring.values(here.stage));
    wait_products<0>();
    pin(warpgroup.sum);
}

// One warpgroup's rows of the task, from queries to result. `bias` is that of the head's queries.
template <class Shape, class Feed>
__device__ __forceinline__ void compute(const Task<Shape>& task, const Ring<Shape>& ring, int group,
                                        const typename Shape::Element* head_queries,
                                        const typename Shape::Element* bias, typename Shape::Element* result,
                                        Feed feed) {
    using Block = Blocking<Shape>;
    constexpr int kResultStride = Shape::kMerged ? Block::kWidth : Block::kHeadDim;
    const int rows = Block::kSeqLen - task.first_row();
    Warpgroup<Shape> warpgroup;
    warpgroup.start(ring.base, group);
    warpgroup.load_queries(head_queries + task.first_row() * Block::kTokenStride, bias, rows);
    if (task.count > 0) attend(warpgroup, ring, task.blocks, task.count, feed);
    warpgroup.store(result + task.result_at(), kResultStride, bias + 2 * Block::kWidth, rows);
}

// qkv: (batch, seq_len, 3, heads, head_dim). bias: (3, heads, head_dim), read if kAddBias.
// lists: (mask_batches, tiles, kListEntries) pairs: the row tile and the number of its blocks; then of each block its
// number and that of its bitmap, -1 if it is kept whole; then (0, -1) twice or more. The longest lists come first.
// bitmaps: (bitmaps, kRows, kColumns / 32). needed: (bitmaps, kColumns / 32): which columns any row of a bitmap keeps.
// result: (batch, seq_len, heads, head_dim) if kMerged, else (batch, heads, seq_len, head_dim).
template <class Shape>
__device__ __forceinline__ void block_attention(const typename Shape::Element* qkv, const typename Shape::Element* bias,
                                                const int* lists, const unsigned* bitmaps, const unsigned* needed,
                                                typename Shape::Element* result) {
    using Block = Blocking<Shape>;
    extern __shared__ char shared[];
    const Ring<Shape> ring{(shared_address(shared) + kPanelAlignment - 1) / kPanelAlignment * kPanelAlignment};

    Task<Shape> task;
    task.read(lists);
    const typename Shape::Element* head_queries = qkv + task.queries_at();
    const typename Shape::Element* head_bias = bias + task.head * Block::kHeadDim;
    if (threadIdx.x == 0) ring.initialise();
    __syncthreads();

    const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x / kWarpgroupSize, 0);
    Copier<Shape> copier;
    if constexpr (Shape::kLoader) {
        if (warpgroup == 0) {
            shrink_registers<Shape::kLoaderRegisters>();
            copier.start(ring, threadIdx.x, head_queries, task.blocks, bitmaps, needed);
            for (int i = 0; i < task.count; ++i) copier.copy();
            wait_copies<0>();
        } else {
            grow_registers<Shape::kRegisters>();
            compute(task, ring, warpgroup - 1, head_queries, head_bias, result, [](int) {});
        }
    } else {
        copier.start(ring, threadIdx.x, head_queries, task.blocks, bitmaps, needed);
#pragma unroll
        for (int i = 0; i < Block::kAhead; ++i) {
            if (i < task.count) copier.copy();
        }
        compute(task, ring, warpgroup, head_queries, head_bias, result, [&](int i) {
            if (i + Block::kAhead < task.count) copier.copy();
        });
    }
}

}  // namespace atoffer
