// Block attention, a warpgroup: its way through the column blocks, and what ranks share at the end.
#pragma once

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
#pragma unroll
        for (int half = FIRST; half < END; ++half) slices[half].finish_totals();
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

}  // namespace atoffer
