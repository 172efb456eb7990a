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
// Where few thread blocks have long lists, several warpgroups share 64 rows (kSplits): each takes every so manieth block,
// copied into a ring of its own, and the first merges what they found.
//
// The biases of queries and values are added; that of keys shifts all scores of a row alike, which softmax undoes.
#pragma once

#include "block_copy.cuh"
#include "block_warpgroup.cuh"

namespace atoffer {

// `count` blocks of a task, for one warpgroup: every kSplits-th from `entries` on. `first_bitmaps` are those of the first
// two. `feed(i)` is called once for each block i, while products run.
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
        next_bitmap = entries[(i + 1) * Block::kSplits].bitmap;
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
// kEndEntries or more of no bitmap. The longest lists come first.
// bitmaps: (bitmaps, kRows, kColumns / 32).
// result: (batch, seq_len, heads, head_dim) if kMerged, else (batch, heads, seq_len, head_dim).
template <class Shape>
__device__ __forceinline__ void block_attention(const typename Shape::Element* qkv, const typename Shape::Element* bias,
                                                const Entry<Shape>* lists, const unsigned* bitmaps,
                                                typename Shape::Element* result) {
    using Block = Blocking<Shape>;
    constexpr int kResultStride = Shape::kMerged ? Block::kWidth : Block::kHeadDim;
    extern __shared__ char shared[];
    const int role = __shfl_sync(kFullWarp, threadIdx.x / kWarpgroupSize, 0);
    const int split = Block::kSplits > 1 ? role : 0;
    const unsigned first_ring = (shared_address(shared) + kPanelAlignment - 1) / kPanelAlignment * kPanelAlignment;
    const Ring<Shape> ring{first_ring + split * Block::kRingBytes};
    const bool copies = !Shape::kLoader || role == 0, computes = !Shape::kLoader || role > 0;

    Task<Shape> task;
    task.read(lists);
    const typename Shape::Element* head_queries = qkv + task.queries_at();
    const typename Shape::Element* head_bias = bias + task.head * Block::kHeadDim;
    const int rows = Block::kSeqLen - task.first_row();
    const int blocks = (task.count - split + Block::kSplits - 1) / Block::kSplits;  // of this ring

    // What needs no input is done while the kernel before this one ends.
    Copier<Shape> copier;
    Warpgroup<Shape> warpgroup;
    typename Warpgroup<Shape>::Fetched queries;
    int2 first_bitmaps;
    if (copies) copier.start(ring, threadIdx.x % Block::kRingThreads, head_queries, task, split);
    if (computes) {
        warpgroup.start(ring.base, role - Shape::kLoader - split);
        first_bitmaps = make_int2(task.entries[split].bitmap, task.entries[split + Block::kSplits].bitmap);
    }
    if (threadIdx.x % Block::kRingThreads == 0) ring.initialise();
    __syncthreads();
    wait_for_inputs();
    let_next_begin();

    if (computes) {
        warpgroup.fetch_queries(queries, head_queries + task.first_row() * Block::kTokenStride, head_bias, rows);
    }
    if constexpr (Shape::kLoader) {
        if (!computes) {
            shrink_registers<Shape::kLoaderRegisters>();
            for (int i = 0; i < blocks; ++i) copier.copy();
            wait_copies<0>();
            return;
        }
        grow_registers<Shape::kRegisters>();
    } else {
#pragma unroll
        for (int i = 0; i < Block::kAhead; ++i) {
            if (i < blocks) copier.copy_to_empty();
        }
    }
    warpgroup.place_queries(queries);
    const auto feed = [&](int i) {
        if (!Shape::kLoader && i + Block::kAhead < blocks) copier.copy();
    };
    if (blocks > 0) {
        const int count = Block::kSplits > 1 ? blocks : task.count_of(warpgroup.group);
        attend(warpgroup, ring, task.entries + split, first_bitmaps, bitmaps, count, feed);
    }
    if constexpr (!Shape::kLoader) wait_copies<0>();  // others may still wait for what an early one has copied
    if constexpr (Block::kSplits > 1) {
        char* first = shared + (first_ring - shared_address(shared));
        const auto results = [&](int of) { return reinterpret_cast<float*>(first + of * Block::kRingBytes); };
        const int thread = threadIdx.x % kWarpgroupSize;
        if (split > 0) warpgroup.leave(results(split) + thread);
        __syncthreads();
        if (split > 0) return;
#pragma unroll
        for (int other = 1; other < Block::kSplits; ++other) warpgroup.take(results(other) + thread);
    } else {
        synchronise_some<Block::kGroups * kWarpgroupSize>(Block::kStoreBarrier);  // nobody needs the ring any more
    }
    const int warp = threadIdx.x / kWarpSize - Shape::kLoader * kWarpgroupSize / kWarpSize;
    warpgroup.store(result + task.result_at(), kResultStride, head_bias + 2 * Block::kWidth, rows,
                    first_ring + warp * kWarpRows * Block::kRowVectors * kVectorBytes);
}

}  // namespace atoffer
