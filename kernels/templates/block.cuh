// Attention by whole blocks of key columns on Hopper's warpgroup products: softmax(scale * Q K^T under a mask) V.
//
// A thread block owns (row tile, head, sequence). Its list names the column blocks that any row of the tile keeps, in
// order, and which of them need a bitmap; the others are kept whole. Nothing else of K and V is read. Where a rule gives
// the blocks (kReach), copies do not wait for the list.
//
//   list: 0, 1, 3 + bitmap                 shared memory, kStages buffers
//   device memory                          +------------+------------+
//   K, V rows ------ 16-byte cp.async ---> | K (C x W)  | V (C x W)  |   panels, see wgmma.cuh
//                                          +------------+------------+
//   Q (64 x W a warpgroup) -- product --> scores (64 x C, float32)   |  transposed
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

// The first `count` blocks of a task, for one warpgroup; `first_bitmaps` are those of its first two entries. `feed(i)` is
// called once for each block i, while products run.
template <class Shape, class Feed>
__device__ __forceinline__ void attend(Warpgroup<Shape>& warpgroup, const Ring<Shape>& ring,
                                       const Entry<Shape>* entries, int2 first_bitmaps, const unsigned* bitmaps,
                                       int count, Feed feed) {
    using Block = Blocking<Shape>;
    const auto release = [&](int stage) {
        if (warpgroup.lane == 0) arrive(ring.emptied(stage));
    };
    Place<Block::kStages> here;
    int bitmap = first_bitmaps.x, next_bitmap = first_bitmaps.y;

    if (bitmap >= 0) warpgroup.fetch_bitmap(bitmaps, bitmap);
    wait_phase(ring.keys_here(here.stage), here.parity);
    fence_shared();
    warpgroup.issue_scores(ring.keys(here.stage));
    feed(0);
    wait_products<0>();
    pin(warpgroup.scores);
    float factor[2];
    if (bitmap >= 0) warpgroup.mask_scores();
    warpgroup.soften(factor);
    warpgroup.pack_probabilities();
    Turns<Shape>::begin(warpgroup.group);

    for (int i = 1; i < count; ++i) {
        Place<Block::kStages> next = here;
        next.advance();
        bitmap = next_bitmap;
        next_bitmap = entries[i + 1].bitmap;
        if (bitmap >= 0) warpgroup.fetch_bitmap(bitmaps, bitmap);
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
        if (bitmap >= 0) warpgroup.mask_scores();
        const bool rescales = warpgroup.soften(factor);
        warpgroup.finish_softmax();
        wait_products<0>();
        pin(warpgroup.sum);
        pin(warpgroup.probabilities);
        __syncwarp();
        release(here.stage);
        if (rescales) warpgroup.rescale(factor);
        warpgroup.pack_probabilities();
        here = next;
    }
    wait_phase(ring.values_here(here.stage), here.parity);
    fence_shared();
    warpgroup.issue_sum(ring.values(here.stage));
    wait_products<0>();
    pin(warpgroup.sum);
}

// qkv: (batch, seq_len, 3, heads, head_dim). bias: (3, heads, head_dim), read if kAddBias.
// lists: (mask_batches, tiles, kListEntries) entries: the row tile and the number of its blocks; the blocks; then
// entries of no bitmap, twice or more. The longest lists come first.
// bitmaps: (bitmaps, kRows, kColumns / 32).
// result: (batch, seq_len, heads, head_dim) if kMerged, else (batch, heads, seq_len, head_dim).
template <class Shape>
__device__ __forceinline__ void block_attention(const typename Shape::Element* qkv, const typename Shape::Element* bias,
                                                const Entry<Shape>* lists, const unsigned* bitmaps,
                                                typename Shape::Element* result) {
    using Block = Blocking<Shape>;
    constexpr int kResultStride = Shape::kMerged ? Block::kWidth : Block::kHeadDim;
    extern __shared__ char shared[];
    const Ring<Shape> ring{(shared_address(shared) + kPanelAlignment - 1) / kPanelAlignment * kPanelAlignment};
    wait_for_inputs();
    const int role = __shfl_sync(kFullWarp, threadIdx.x / kWarpgroupSize, 0);
    const bool copies = !Shape::kLoader || role == 0, computes = !Shape::kLoader || role > 0;

    Task<Shape> task;
    task.read(lists);
    const typename Shape::Element* head_queries = qkv + task.queries_at();
    const typename Shape::Element* head_bias = bias + task.head * Block::kHeadDim;
    const int rows = Block::kSeqLen - task.first_row();

    // What comes first is on its way before the block's threads meet: keys, queries, numbers of bitmaps.
    Copier<Shape> copier;
    Warpgroup<Shape> warpgroup;
    typename Warpgroup<Shape>::Fetched queries;
    int2 first_bitmaps;
    if (copies) {
        copier.start(ring, threadIdx.x, head_queries, task);
        if (task.count > 0) copier.copy_keys();
    }
    if (computes) {
        warpgroup.start(ring.base, role - Shape::kLoader);
        first_bitmaps = make_int2(task.entries[0].bitmap, task.entries[1].bitmap);
        warpgroup.fetch_queries(queries, head_queries + task.first_row() * Block::kTokenStride, head_bias, rows);
    }
    if (threadIdx.x == 0) ring.initialise();
    __syncthreads();
    if (copies && task.count > 0) copier.finish_copy();

    if constexpr (Shape::kLoader) {
        if (!computes) {
            shrink_registers<Shape::kLoaderRegisters>();
            for (int i = 1; i < task.count; ++i) copier.copy();
            wait_copies<0>();
            return;
        }
        grow_registers<Shape::kRegisters>();
    } else {
#pragma unroll
        for (int i = 1; i < Block::kAhead; ++i) {
            if (i < task.count) copier.copy();
        }
    }
    warpgroup.place_queries(queries);
    const auto feed = [&](int i) {
        if (!Shape::kLoader && i + Block::kAhead < task.count) copier.copy();
    };
    if (task.count > 0) {
        const int count = task.count_of(warpgroup.group);
        attend(warpgroup, ring, task.entries, first_bitmaps, bitmaps, count, feed);
    }
    warpgroup.store(result + task.result_at(), kResultStride, head_bias + 2 * Block::kWidth, rows);
}

}  // namespace atoffer
