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
#include "block_warpgroup.cuh"

namespace atoffer {

// One warpgroup's way through the blocks of its task, every kRanks-th from `entries` on. `feed(i)` is called once for each
// block i, while products run.
template <class Shape, class Feed>
struct Walk {
    using Block = Blocking<Shape>;
    static constexpr int kHalves = Block::kHalves;

    Slice<Shape> (&slices)[kHalves];
    const Ring<Shape>& ring;
    const Entry<Shape>* entries;
    const unsigned* bitmaps;
    Feed feed;
    int next_bitmap;
    int i = 0;  // the block whose scores are computed
    Place<Block::kStages> here;  // of the block whose probabilities are there, and its values not yet added

    // The blocks of all slices, of which the first may have fewer: `counts`.
    __device__ __forceinline__ void run(int2 counts, int first_bitmap) {
        begin(first_bitmap);
        go_on<0>(counts.x);
        if constexpr (kHalves == 1) {
            add_values<0, 1>();
        } else if (counts.x == counts.y) {
            add_values<0, 2>();
        } else {
            add_values<0, 1>();
            go_on<1>(counts.y);
            add_values<1, 2>();
        }
    }

    __device__ __forceinline__ void begin(int bitmap) {
        fetch_bitmaps<0>(bitmap);
        wait_phase(ring.keys_here(here.stage), here.parity);
        fence_shared();
#pragma unroll
        for (int half = 0; half < kHalves; ++half) slices[half].issue_scores(ring.keys(here.stage));
        feed(0);
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
            float factor[2];
            wait_products(kHalves - 1 - half);
            take_scores(slices[half], bitmap, factor);
            slices[half].pack_probabilities();
        }
        Turns<Shape>::begin(slices[0].number);
        i = 1;
    }

    // Up to block `count` - 1, for the slices from FIRST on.
    template <int FIRST>
    __device__ __forceinline__ void go_on(int count) {
        constexpr int kSlices = kHalves - FIRST;
        for (; i < count; ++i) {
            Place<Block::kStages> next = here;
            next.advance();
            const int bitmap = next_bitmap;
            next_bitmap = entries[(i + 1) * Block::kRanks].bitmap;
            fetch_bitmaps<FIRST>(bitmap);
            wait_phase(ring.keys_here(next.stage), next.parity);
            wait_phase(ring.values_here(here.stage), here.parity);
            fence_shared();
            Turns<Shape>::await(slices[0].number);
#pragma unroll
            for (int half = FIRST; half < kHalves; ++half) slices[half].issue_scores(ring.keys(next.stage));
#pragma unroll
            for (int half = FIRST; half < kHalves; ++half) slices[half].issue_sum(ring.values(here.stage));
            Turns<Shape>::pass_on(slices[0].number);
            feed(i);
            float factor[kHalves][2];
            bool rescales[kHalves];
#pragma unroll
            for (int half = FIRST; half < kHalves; ++half) {
                wait_products(kSlices + kHalves - 1 - half);
                rescales[half] = take_scores(slices[half], bitmap, factor[half]);
                slices[half].finish_softmax();
            }
            wait_products<0>();
#pragma unroll
            for (int half = FIRST; half < kHalves; ++half) {
                pin(slices[half].sum);
                pin(slices[half].probabilities);
            }
            __syncwarp();
            if (slices[0].lane == 0) arrive(ring.emptied(here.stage));
#pragma unroll
            for (int half = FIRST; half < kHalves; ++half) {
                if (rescales[half]) slices[half].rescale(factor[half]);
                slices[half].pack_probabilities();
            }
            here = next;
        }
    }

    // The last values of slices FIRST to END - 1.
    template <int FIRST, int END>
    __device__ __forceinline__ void add_values() {
        wait_phase(ring.values_here(here.stage), here.parity);
        fence_shared();
#pragma unroll
        for (int half = FIRST; half < END; ++half) slices[half].issue_sum(ring.values(here.stage));
        wait_products<0>();
#pragma unroll
        for (int half = FIRST; half < END; ++half) pin(slices[half].sum);
    }

    template <int FIRST>
    __device__ __forceinline__ void fetch_bitmaps(int bitmap) {
        if (bitmap < 0) return;
#pragma unroll
        for (int half = FIRST; half < kHalves; ++half) slices[half].fetch_bitmap(bitmaps, bitmap);
    }

    // Scores that are complete become probabilities; says whether sums are to be multiplied by `factor`.
    static __device__ __forceinline__ bool take_scores(Slice<Shape>& slice, int bitmap, float (&factor)[2]) {
        pin(slice.scores);
        if (bitmap >= 0) slice.mask_scores();
        return slice.soften(factor);
    }
};

// Ranks share what they found: says whether this warp, number `warp` of rank `rank`, is to store its rows.
template <class Shape>
__device__ __forceinline__ bool share_rows(Slice<Shape>& slice, const Ring<Shape>& ring, int rank, int warp) {
    using Block = Blocking<Shape>;
    const int finisher = warp / Block::kFinishedWarps;
    if constexpr (Block::kCluster > 1) await_begun();
    if (finisher != rank) {
        const Ring<Shape> theirs = ring.of_rank(finisher, rank);
        const int block = finisher / Block::kGroups;
        slice.give(remote_address(theirs.partial(rank, finisher, warp), block), remote_address(theirs.partials_here(), block));
        return false;
    }
    wait_stored(ring.partials_here());
#pragma unroll
    for (int other = 1; other < Block::kRanks; ++other) {
        slice.take(ring.partial((rank + other) % Block::kRanks, rank, warp));
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
    const int rank = Block::kRanks > 1 ? static_cast<int>(blockIdx.x) % Block::kCluster * Block::kGroups + role : 0;
    const unsigned base = (shared_address(shared) + kPanelAlignment - 1) / kPanelAlignment * kPanelAlignment;
    const Ring<Shape> ring{base + (Block::kRanks > 1 ? role * Block::kRingBytes : 0)};

    // What needs no input is done while the kernel before this one ends.
    Task<Shape> task;
    Copier<Shape> copier;
    Slice<Shape> slices[Block::kHalves];
    typename Slice<Shape>::Fetched fetched[Block::kHalves];
    int2 first_bitmaps;
    task.read(lists, static_cast<int>(blockIdx.x) / Block::kCluster);
    const typename Shape::Element* head_bias = bias + task.head * Block::kHeadDim;
    const int rows = Block::kSeqLen - task.first_row();
    const int blocks = (task.count - rank + Block::kRanks - 1) / Block::kRanks;  // column blocks of this rank
    if (copies) copier.start(ring, threadIdx.x % Block::kCopyThreads, qkv, task, rank);
    if (computes) {
#pragma unroll
        for (int half = 0; half < Block::kHalves; ++half) {
            const int slice = Block::kRanks > 1 ? 0 : (role - Shape::kLoader) * Block::kHalves + half;
            slices[half].start(ring.base, slice, task);
        }
        first_bitmaps = make_int2(task.entries[rank].bitmap, task.entries[rank + Block::kRanks].bitmap);
    }
    if (threadIdx.x % (Block::kRanks > 1 ? kWarpgroupSize : Block::kThreads) == 0) ring.initialise();
    __syncwarp();
    if constexpr (Block::kCluster > 1) announce_begun();
    __syncthreads();
    wait_for_inputs();
    let_next_begin();

    if constexpr (Block::kCopiesQueries) {
        if (copies && blocks > 0) copier.copy_queries(rows);
    } else {
#pragma unroll
        for (int half = 0; half < Block::kHalves; ++half) {
            if (computes) slices[half].fetch_queries(fetched[half], qkv, head_bias, rows);
        }
    }
    if constexpr (Shape::kLoader) {
        if (!computes) {
            shrink_registers<Shape::kLoaderRegisters>();
            for (int i = 0; i < blocks; ++i) copier.copy();
            finish_copies();  // the thread's copies must not outlive it
            return;
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
        for (int half = 0; half < Block::kHalves; ++half) slices[half].place_queries(fetched[half]);
    }
    const auto feed = [&](int i) {
        const int next = i + Block::kAhead;
        if (!Shape::kLoader && next < blocks) copier.copy();
    };
    if (blocks > 0) {
        int2 counts = make_int2(blocks, blocks);
        if constexpr (Block::kRanks == 1) {
            counts = make_int2(task.count_of(slices[0].number), task.count_of(slices[Block::kHalves - 1].number));
        }
        Walk<Shape, decltype(feed)> walk{slices, ring, task.entries + rank, bitmaps, feed, first_bitmaps.y};
        walk.run(counts, first_bitmaps.x);
    }
    // A warp's own queries are nobody else's; stages are everybody's until all products have ended.
    if constexpr (!Shape::kSharedQueries) {
        synchronise_some<Block::kRingGroups * kWarpgroupSize>(Block::kStoreBarrier + (Block::kRanks > 1 ? role : 0));
    }
    if constexpr (Block::kRanks > 1) {
        if (!share_rows(slices[0], ring, rank, threadIdx.x % kWarpgroupSize / kWarpSize)) return;
    }
#pragma unroll
    for (int half = 0; half < Block::kHalves; ++half) {
        slices[half].store(result + task.result_at(), kResultStride, head_bias + 2 * Block::kWidth, rows);
    }
}

}  // namespace atoffer
