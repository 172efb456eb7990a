// Attention by whole blocks of key columns on Hopper's warpgroup products: softmax(scale * Q K^T under a mask) V.
//
// A thread block owns (row tile, head, sequence). Its list names the column blocks that any row of the tile keeps, in
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
// Each warpgroup owns 64 rows. While the tensor cores multiply P of one block by its values, the threads turn the
// scores of the next block into probabilities:
//
//   products   | scores 1 | sum 0  | scores 2 | sum 1  | ...
//   threads    |          | softmax 1         | softmax 2 ...
//
// Copies are the job of all threads, or of a warpgroup of its own (kLoader), whose registers the others take over. With
// a loader, warpgroups take turns in issuing products, so that one's softmax runs beside another's products.
//
// Where there are few tiles, the thread blocks of a cluster, its ranks, share one of 64 rows (kRanks): each takes every
// kRanks-th column block. Then each has some warps' rows to finish, and gives what it found of the others' to those ranks:
//
//   rank 0   column blocks 0, 4, ... | gives rows 16 to 63        | waits for rows 0 to 15 of the others, merges, stores
//   rank 1   column blocks 1, 5, ... | gives rows 0 to 15, 32 ... | the same of rows 16 to 31
//   ...
//
// The biases of queries and values are added; that of keys shifts all scores of a row alike, which softmax undoes.
#pragma once

#include "block_copy.cuh"
#include "block_warpgroup.cuh"

namespace atoffer::block {

// `count` blocks of a task, for one warpgroup: every kRanks-th from `entries` on. `first_bitmaps` are those of the first
// two. `feed(i)` is called once for each block i, while products run.
template <class Shape, class Feed>
__device__ __forceinline__ void attend(Warpgroup<Shape>& warpgroup, const Ring<Shape>& ring,
                                       const Entry<Shape>* entries, int2 first_bitmaps, const unsigned* bitmaps,
                                       int count, Feed feed) {
    using Block = Blocking<Shape>;
    const auto release = [&](int stage) {
        if (warpgroup.lane == 0) arrive(ring.emptied(stage));
    };
    RingPosition<Block::kStages> here;
    int bitmap = first_bitmaps.x, next_bitmap = first_bitmaps.y;

    if (bitmap >= 0) warpgroup.fetch_bitmap(bitmaps, bitmap);
    wait_phase(ring.keys_here(here.at), here.parity);
    fence_shared();
    warpgroup.issue_scores(ring.keys(here.at));
    feed(0);
    wait_products<0>();
    pin(warpgroup.scores);
    float factor[2];
    if (bitmap >= 0) warpgroup.mask_scores();
    warpgroup.soften(factor);
    warpgroup.pack_probabilities();
    Turns<Shape>::begin(warpgroup.group);

    for (int i = 1; i < count; ++i) {
        RingPosition<Block::kStages> next = here;
        next.advance();
        bitmap = next_bitmap;
        next_bitmap = entries[(i + 1) * Block::kRanks].bitmap;
        if (bitmap >= 0) warpgroup.fetch_bitmap(bitmaps, bitmap);
        wait_phase(ring.keys_here(next.at), next.parity);
        wait_phase(ring.values_here(here.at), here.parity);
        fence_shared();
        Turns<Shape>::await(warpgroup.group);
        warpgroup.issue_scores(ring.keys(next.at));
        warpgroup.issue_sum(ring.values(here.at));
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
        release(here.at);
        if (rescales) warpgroup.rescale(factor);
        warpgroup.pack_probabilities();
        here = next;
    }
    wait_phase(ring.values_here(here.at), here.parity);
    fence_shared();
    warpgroup.issue_sum(ring.values(here.at));
    wait_products<0>();
    pin(warpgroup.sum);
}

// Ranks share what they found: says whether this warp, one of rank `rank`, is to store its rows.
template <class Shape>
__device__ __forceinline__ bool share_rows(Warpgroup<Shape>& warpgroup, const Ring<Shape>& ring, int rank, int warp) {
    using Block = Blocking<Shape>;
    const int finisher = warp / Block::kFinishedWarps;
    await_begun();
    if (finisher != rank) {
        const unsigned to = remote_address(ring.partial(rank, finisher, warp), finisher);
        warpgroup.give(to, remote_address(ring.partials_here(), finisher));
        return false;
    }
    wait_phase_of_cluster(ring.partials_here(), 0);
#pragma unroll
    for (int other = 1; other < Block::kRanks; ++other) {
        warpgroup.take(ring.partial((rank + other) % Block::kRanks, rank, warp));
    }
    return true;
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
    const bool copies = !Shape::kLoader || role == 0, computes = !Shape::kLoader || role > 0;
    const int rank = static_cast<int>(blockIdx.x) % Block::kRanks;
    const Ring<Shape> ring{(shared_address(shared) + kPanelAlignment - 1) / kPanelAlignment * kPanelAlignment};

    // What needs no input is done while the kernel before this one ends.
    Task<Shape> task;
    Copier<Shape> copier;
    Warpgroup<Shape> warpgroup;
    typename Warpgroup<Shape>::Fetched fetched;
    int2 first_bitmaps;
    task.read(lists, static_cast<int>(blockIdx.x) / Block::kRanks);
    const typename Shape::Element* head_bias = bias + task.head * Block::kHeadDim;
    const int rows = Block::kSeqLen - task.first_row();
    const int blocks = (task.count - rank + Block::kRanks - 1) / Block::kRanks;  // column blocks of this rank
    if (copies) copier.start(ring, threadIdx.x % Block::kCopyThreads, qkv, task, rank);
    if (computes) {
        warpgroup.start(ring.base, role - Shape::kLoader, task);
        first_bitmaps = make_int2(task.entries[rank].bitmap, task.entries[rank + Block::kRanks].bitmap);
    }
    if (threadIdx.x == 0) ring.initialise();
    if constexpr (Block::kRanks > 1) announce_begun();
    __syncthreads();
    if constexpr (Block::kRanks > 1) ring.expect_partials();
    wait_for_inputs();
    let_next_begin();

    if constexpr (Block::kCopiesQueries) {
        if (copies && blocks > 0) copier.copy_queries(rows);
    } else {
        if (computes) warpgroup.fetch_queries(fetched, qkv, head_bias, rows);
    }
    if constexpr (Shape::kLoader) {
        if (!computes) {
            shrink_registers<Shape::kLoaderRegisters>();
            for (int i = 0; i < blocks; ++i) copier.copy();
            finish_copies();
            return;
        }
        grow_registers<Shape::kRegisters>();
    } else {
#pragma unroll
        for (int i = 0; i < Block::kAhead; ++i) {
            if (i < blocks) copier.copy_to_empty();
        }
    }
    if constexpr (!Block::kCopiesQueries) warpgroup.place_queries(fetched);
    const auto feed = [&](int i) {
        const int next = i + Block::kAhead;
        if (!Shape::kLoader && next < blocks) copier.copy();
    };
    if (blocks > 0) {
        const int count = Block::kRanks > 1 ? blocks : task.count_of(warpgroup.group);
        attend(warpgroup, ring, task.entries + rank, first_bitmaps, bitmaps, count, feed);
    }
    const int warp = threadIdx.x / kWarpSize - Shape::kLoader * kWarpgroupSize / kWarpSize;
    synchronise_some<Block::kGroups * kWarpgroupSize>(Block::kStoreBarrier);  // nobody needs the stages any more
    if constexpr (Block::kRanks > 1) {
        if (!share_rows(warpgroup, ring, rank, warp)) return;
    }
    warpgroup.store(result + task.result_at(), kResultStride, head_bias + 2 * Block::kWidth, rows,
                    ring.base + warp * kWarpRows * Block::kRowVectors * kVectorBytes);
}

}  // namespace atoffer::block
