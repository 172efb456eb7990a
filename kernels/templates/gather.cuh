// Sparse attention on tensor cores: softmax(scale * Q K^T under a mask) V, one item of the mask's plan after another.
//
// The plan gives an item's query rows and, in chunks, the distinct key columns that any of them keeps: only those rows
// of K and V are read (where a formula stands for a list, up to a twentieth more). A fragment of 16 query rows then
// multiplies only the columns of the chunk that its own rows keep: where each of them lies comes as bytes, which row
// keeps it as bits.
//
//   copying warps                                shared memory                      multiplying warps
//   ticket -> item (head, batch)                 kBuffers items:
//   rows of the item    -- 16-byte cp.async -->  | Q (rows x W)  |  -- ldmatrix ----> Q (16 x W, registers)
//                                                kStages chunks:                      | mma
//   columns of a chunk  -- 16-byte cp.async -->  | K (chunk x W) |  -- ldmatrix ----> scores (16 x step, float32)
//    3 | 17 | 40 | -1      gathered              | V (chunk x W) |  -+ gathered       | mask bits, maximum, exp2
//   (-1: nothing is read or written)             | places, bits  |   |                P (16 x step, registers)
//                                                                    +- (.trans) ---> | mma
//                                                                                     sum (16 x W, float32) -> result
//
// Copying warps run ahead of the multiplying ones, into the next item: barriers in shared memory say when a stage is full
// and when it is empty again. With two buffers the next item's queries and first chunks are there when an item ends;
// with one they come after it, and other blocks of the multiprocessor have the memory. A block takes items until none is
// left; it draws their numbers in order where there are more items than blocks.
//
// Multiplying warps split an item's fragments; where there are more warps than fragments, they take turns at the steps
// of a chunk, and their maxima, totals and sums meet in shared memory at the end.
//
// A partial item leaves its rows' sums and log-sum-exp in scratch, on the shelf that the plan names, and is counted. A
// final item that merges shelves needs all partial items of its head. Its copying warps wait for them, once they have
// issued its last chunk, and bring the shelves, one after another; then they go on into the next item.
//
//   partial items' blocks     device memory      copying warps               shared memory      multiplying warps
//   sums, weights ----------> shelf              after the last chunk:                          at the item's end:
//   then count (release) ---> count of the head  count = all (acquire),
//                             rows of the item   -- 16-byte cp.async ----->  | sums    |  ----> sum, total, maximum
//                                                -- 4 or 8 bytes --------->  | weights |  ----> -> result
//
// Nobody waits for ever. Numbers are drawn in order, and where each block has just one, cards begin blocks in the order of
// theirs: so running blocks hold whatever a number waits for, and that has smaller numbers. When copying warps wait,
// everything for the earlier items of their block, and the chunks of this one, is on its way; its multiplying warps go
// on, and have counted what they wrote before they wait for anything. The last block to leave sets counts back.
//
// Wide items. Where a few rows need far more columns than most, 16 of them are an item: all of its fragments have these
// rows, and each multiplies every so-manieth group of columns and merges every so-manieth shelf. At its end they leave what
// they found in the place of their queries, and the first of them merges it.
//
// Two passes. A mask may fall into a near part, whose columns neighbouring rows share, and a far part, whose columns
// other rows share. Then an item's rows are cut into fragments twice: a first pass over all chunks multiplies the far
// part and leaves its results in shared memory, a second over the last chunks, which have stayed there, the near part.
//
// Lengths. Where sequences have them, copying warps take no chunk whose columns, and those of all later ones, lie beyond
// the length, and none at all of an item whose rows do; they leave zeros where values beyond it would be. Multiplying
// warps drop what is left of rows and columns beyond it, whose numbers come with the chunk. Packed sequences begin at the
// rows that their offsets name; their rows beyond the length are the next sequence's, and are not stored.
//
// Bias. q gets it when it is loaded. q . (k + b) = q . k + q . b: the second is the same for all columns, and softmax
// cancels it. sum p (v + b) = sum p v + b, because the p of a row add up to 1: it is added at the end.
//
// Rows lie in shared memory as 16-byte vectors whose position is XORed with bits of the row, so that the eight rows that
// an ldmatrix phase reads, neighbours or a constant step apart, mostly fall into distinct banks.
#pragma once

#include "gather_copy.cuh"
#include "gather_fragment.cuh"

namespace atoffer::gather {

// The multiplying warps' part: every item of the block, in the order in which they are copied.
template <class Shape>
struct Multiplier {
    using Tile = Tiling<Shape>;
    using Element = typename Shape::Element;
    static constexpr int kResultStride = Shape::kMerged ? Tile::kWidth : Tile::kHeadDim;

    const Plan<Element>& plan;
    const Shared<Shape>& shared;
    Element* result;
    WarpTile<Shape> warp;
    RingPosition<Tile::kStages> stage;
    RingPosition<Tile::kBuffers> buffer;
    RingPosition<1> shelf;
    int uncounted = kNoHead;  // whose partial item this warp has written and not counted yet

    __device__ __forceinline__ Multiplier(const Plan<Element>& plan, const Shared<Shape>& shared, Element* result)
        : plan(plan), shared(shared), result(result) {}

    __device__ __forceinline__ void run() {
        while (true) {
            if constexpr (Tile::kShelves) {
                if (!phase_over(shared.item_full(buffer.at), buffer.parity)) count_partial();
            }
            wait_phase(shared.item_full(buffer.at), buffer.parity);
            const int ticket = *shared.ticket(buffer.at);
            if (ticket == kNoTicket) return count_partial();
            Item item = *shared.item(buffer.at);
            if constexpr (Tile::kPadded) {
                item.chunks = *shared.chunks_taken(buffer.at);
                item.kept = min(item.kept, item.chunks);
            }
            warp.load_queries(shared, buffer.at, 0);
            if constexpr (Tile::kPasses > 1) {
                far_pass(item);
                take(item, Tile::kPasses - 1, item.kept, true);
                quad_sum(warp.total);
                store(head_item_of<Shape>(ticket).head);
            } else {
                warp.start(shared, buffer.at, 0);
                count_partial();
                take(item, 0, item.chunks, true);
                if constexpr (Tile::kStepWarps > 1) warp.merge_warps(shared.partials());
                if (warp.step_warp == 0) finish(item, head_item_of<Shape>(ticket).head);
            }
            arrive(shared.item_empty(buffer.at));
            buffer.advance();
        }
    }

    // One pass over the next `chunks` chunks.
    __device__ __forceinline__ void take(const Item& item, int pass, int chunks, bool last) {
        for (int chunk = 0; chunk < chunks; ++chunk) {
            wait_phase(shared.stage_full(stage.at), stage.parity);
            warp.attend(shared, stage.at, pass);
            if (last || chunk < item.chunks - item.kept) arrive(shared.stage_empty(stage.at));
            stage.advance();
        }
    }

    // The pass over all chunks; goes back to the first of those that stay for the next pass, which goes on from its
    // results. They take the place of the queries, once every warp has read those of both passes. The last pass has rows
    // in their own order, so that a warp's results are staged where it alone has read.
    __device__ __forceinline__ void far_pass(const Item& item) {
        RingPosition<Tile::kStages> first_kept = stage;
        for (int chunk = item.kept; chunk < item.chunks; ++chunk) first_kept.advance();
        warp.start(shared, buffer.at, 0);
        take(item, 0, item.chunks, false);
        stage = first_kept;
        quad_sum(warp.total);
        warp.load_queries(shared, buffer.at, Tile::kPasses - 1);
        synchronise_some<Tile::kThreads>(WarpTile<Shape>::kBarrier);
        warp.leave_pass(shared, buffer.at);
        synchronise_some<Tile::kThreads>(WarpTile<Shape>::kBarrier);
        warp.start(shared, buffer.at, Tile::kPasses - 1);
        warp.resume_pass(shared, buffer.at);
    }

    __device__ __forceinline__ void finish(const Item& item, int head) {
        quad_sum(warp.total);
        const bool wide = Tile::kWide && item.shelf != kFinal;
        if constexpr (Tile::kShelves) merge_shelves(item, head);
        if constexpr (Tile::kWide) {
            if (wide) warp.merge_shares(shared, buffer.at);
        }
        const bool has_result = !wide || warp.fragment == 0;
        if constexpr (Tile::kShelves) {
            if (item.shelf >= 0) {
                if (has_result) warp.store_partial(plan, item.shelf, head);
                uncounted = head;
                return;
            }
        }
        if (has_result) store(head);
    }

    // Takes in the shelves that the item merges. Where there are wide items no others merge, and each of their fragments
    // takes every kFragments-th shelf.
    __device__ __forceinline__ void merge_shelves(const Item& item, int head) {
        for (int first = 0; first < item.merges; first += Tile::kShelvesAtOnce) {
            const int from = first + (Tile::kWide ? warp.fragment : 0);
            wait_phase(shared.shelf_full(), shelf.parity);
            if (from < item.merges) {
                warp.merge_shelf(shared);
                warp.discard_shelf(plan, from, head);
            }
            arrive(shared.shelf_empty());
            shelf.advance();
        }
    }

    // Counts the partial item that the warp wrote last. Counting waits until what was written has arrived, so it is put
    // off until the next item has begun; but a warp that waits for anything has counted: others may wait for it.
    __device__ __forceinline__ void count_partial() {
        if constexpr (Tile::kShelves) {
            if (uncounted != kNoHead && warp.lane == 0) count_released(plan.counts + 2 + uncounted);
            uncounted = kNoHead;
        }
    }

    __device__ __forceinline__ void store(int head) {
        const int batch = head / Tile::kHeads, channels = head % Tile::kHeads * Tile::kHeadDim;
        const int first = Shape::kMerged ? first_row_of<Shape>(plan, batch) * Tile::kWidth + channels
                                         : head * Tile::kSeqLen * Tile::kHeadDim;
        const auto* value_bias = reinterpret_cast<const Element*>(shared.biases(buffer.at) + Tile::kRowBytes);
        char* own_queries = shared.queries(buffer.at) + warp.fragment * kFragmentRows * Tile::kRowBytes;
        warp.store(result + first, kResultStride, value_bias, own_queries);
    }
};

// Computes the block's items.
//
// qkv: (batch, seq_len, 3, heads, head_dim). bias: (3, heads, head_dim), read if kAddBias.
// result: (batch, seq_len, heads, head_dim) if kMerged, else (batch, heads, seq_len, head_dim).
template <class Shape>
__device__ __forceinline__ void gather_attention(const typename Shape::Element* qkv, const typename Shape::Element* bias,
                                               const Plan<typename Shape::Element>& plan,
                                               typename Shape::Element* result) {
    extern __shared__ __align__(256) char memory[];
    const Shared<Shape> shared(memory);
    if (threadIdx.x == 0) shared.start_barriers();
    if constexpr (!Tiling<Shape>::kEven) shared.clear_rows();
    __syncthreads();
    if (threadIdx.x < Tiling<Shape>::kThreads) {
        if constexpr (Shape::kRegisters > 0) grow_registers<Shape::kRegisters>();
        wait_for_inputs();
        let_next_begin();
        Multiplier<Shape>(plan, shared, result).run();
    } else {
        if constexpr (Shape::kRegisters > 0) shrink_registers<Shape::kCopyRegisters>();
        Copier<Shape>(qkv, bias, plan, shared).run();
    }
}

}  // namespace atoffer::gather
