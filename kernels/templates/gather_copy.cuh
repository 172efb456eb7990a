// Gathering attention, copying warps: device memory to shared memory.
#pragma once

#include "gather_layout.cuh"

namespace atoffer::gather {

// Rows and columns of an item as the plan lists them.
template <class Shape>
struct ListedSource {
    using Tile = Tiling<Shape>;

    const int* rows;
    const int* columns;
    Item item;

    __device__ __forceinline__ ListedSource(const Plan<typename Shape::Element>& plan, int index, int)
        : rows(plan.rows + index * Tile::kTileRows),
          columns(plan.columns + index * Tile::kChunks * Tile::kChunk),
          item(plan.items[index]) {}

    __device__ __forceinline__ int chunks() const { return item.chunks; }
    __device__ __forceinline__ int merges() const { return item.merges; }
    __device__ __forceinline__ int row(int place) const { return rows[place]; }
    __device__ __forceinline__ int column(int place) const { return columns[place]; }
};

// The same, computed from the item's number: nothing has to be read before the copies can begin. Columns are those of
// a band that moves with the rows, after summary columns a constant step apart; see ColumnFormula of gather_items.py.
template <class Shape>
struct ComputedSource {
    using Tile = Tiling<Shape>;

    int first_row, summaries, band, columns;

    __device__ __forceinline__ ComputedSource(const Plan<typename Shape::Element>&, int, int number) {
        first_row = (Tile::kItems - 1 - number) * Tile::kTileRows;
        const int end_row = min(first_row + Tile::kTileRows, Tile::kSeqLen);
        band = max(0, first_row - Shape::kLeft) / Shape::kAlign * Shape::kAlign;
        summaries = max(0, band - Shape::kOffset + Shape::kSummaryStep - 1) / Shape::kSummaryStep;
        columns = summaries + min(end_row + Shape::kRight, Tile::kSeqLen) - band;
    }

    __device__ __forceinline__ int merges() const { return 0; }
    __device__ __forceinline__ int chunks() const { return (columns + Tile::kChunk - 1) / Tile::kChunk; }
    __device__ __forceinline__ int row(int place) const {
        return first_row + place < Tile::kSeqLen ? first_row + place : -1;
    }
    __device__ __forceinline__ int column(int place) const {
        if (place >= columns) return -1;
        return place < summaries ? Shape::kOffset + place * Shape::kSummaryStep : band + place - summaries;
    }
};

template <class Shape, bool COMPUTED>
struct SourceOf {
    using Type = ListedSource<Shape>;
};
template <class Shape>
struct SourceOf<Shape, true> {
    using Type = ComputedSource<Shape>;
};

// One thread's part: always the same vector of channels, of every kCopyRows-th row.
template <class Shape>
struct Copier {
    using Tile = Tiling<Shape>;
    using Element = typename Shape::Element;
    using Source = typename SourceOf<Shape, Shape::kComputed>::Type;
    static constexpr int kBarrier = 1;  // named barrier of the copying warps
    static constexpr bool kDraws = Tile::kTickets > Shape::kGrid;
    static constexpr bool kWaits = Tile::kShelves;

    const Element* qkv;
    const Element* bias;
    const Plan<Element>& plan;
    const Shared<Shape>& shared;
    int thread, first_row, vector;
    RingPosition<Tile::kStages> stage;
    RingPosition<Tile::kBuffers> buffer;
    RingPosition<1> shelf;

    // Which rows of a matrix of ROWS rows the warp copies, as numbers of device memory's: each lane holds a few, and gives
    // them to the others when they are copied. -1 where there is none.
    template <int ROWS>
    struct Numbers {
        static constexpr int kCopies = (ROWS + Tile::kCopyRows - 1) / Tile::kCopyRows;  // that a thread takes part in
        static constexpr int kHeld = (kCopies * Tile::kWarpRows + kWarpSize - 1) / kWarpSize;
        int values[kHeld];

        // Reads all at once. `number_of(row)` is the number of a row of the matrix.
        template <class NumberOf>
        __device__ __forceinline__ void fetch(int thread, NumberOf number_of) {
            const int warp = thread / kWarpSize, lane = thread % kWarpSize;
#pragma unroll
            for (int held = 0; held < kHeld; ++held) {
                const int at = held * kWarpSize + lane;  // of the warp's rows
                const int row = at / Tile::kWarpRows * Tile::kCopyRows + warp * Tile::kWarpRows + at % Tile::kWarpRows;
                values[held] = row < ROWS ? number_of(row) : -1;
            }
        }

        // Of the i-th row that the thread copies. All lanes of the warp call it.
        __device__ __forceinline__ int of(int i, int thread) const {
            const int at = i * Tile::kWarpRows;
            return __shfl_sync(kFullWarp, values[at / kWarpSize],
                               at % kWarpSize + thread % kWarpSize / Tile::kRowVectors);
        }
    };
    using Rows = Numbers<Tile::kTileRows>;
    using Columns = Numbers<Tile::kChunk>;

    __device__ __forceinline__ Copier(const Element* qkv, const Element* bias, const Plan<Element>& plan,
                                      const Shared<Shape>& shared)
        : qkv(qkv), bias(bias), plan(plan), shared(shared) {
        thread = (threadIdx.x - Tile::kThreads) % Tile::kCopyThreads;  // the remainder tells the compiler its range
        first_row = thread / Tile::kRowVectors;
        vector = thread % Tile::kRowVectors;
    }

    // Where the thread's vector of the i-th row that it copies lies in a matrix: of what depends on i, only constants.
    __device__ __forceinline__ int target(int i) const {
        using Keys = Swizzle<Tile::kRowVectors>;
        const int key_sum = Keys::key_sum(first_row) + Keys::key_sum(i * Tile::kCopyRows) % Keys::kKeys;
        return Keys::at(first_row, vector, key_sum) + i * Tile::kCopyRows * Tile::kRowBytes;
    }

    // `from`, so many tokens further: one multiplication of 32 bits to 64.
    static __device__ __forceinline__ const Element* token(const Element* from, int number) {
        constexpr int kTokenBytes = Tile::kTokenStride * sizeof(Element);
        return reinterpret_cast<const Element*>(reinterpret_cast<const char*>(from) +
                                                static_cast<long long>(number) * kTokenBytes);
    }

    __device__ __forceinline__ bool has_channels() const {
        return Tile::kEven || vector * Tile::kVectorElements < Tile::kHeadDim;
    }

    // Copies every item of the block, then a ticket that stands for none.
    __device__ __forceinline__ void run() {
        if constexpr (kWaits || Tile::kPadded) wait_for_inputs();
        int ticket = kWaits && kDraws ? share(draw()) : static_cast<int>(blockIdx.x);
        while (ticket < Tile::kTickets) {
            const int drawn = copy_item(ticket);
            ticket = kDraws ? share(drawn) : drawn;
        }
        wait_phase(shared.item_empty(buffer.at), buffer.parity ^ 1);
        publish(kNoTicket);
        if constexpr (kDraws || kWaits) leave();
    }

    // The next number, for the first thread. Where items wait for others and there are more of them than blocks, all are
    // drawn, so that one that is waited for has been drawn by a block that runs; else each block begins with its own.
    __device__ __forceinline__ int draw() const {
        return thread == 0 ? atomicAdd(plan.counts, 1) + (kWaits ? 0 : Shape::kGrid) : 0;
    }

    // What the first thread has drawn, for all copying threads.
    __device__ __forceinline__ int share(int drawn) const {
        if (thread == 0) *shared.drawn() = drawn;
        synchronise_some<Tile::kCopyThreads>(kBarrier);
        const int ticket = *shared.drawn();
        synchronise_some<Tile::kCopyThreads>(kBarrier);
        return ticket;
    }

    // The last block to leave sets the counts back for the next launch: nobody draws or waits any more. Where no item
    // merges what a partial one leaves, nobody has waited for that one to be counted.
    __device__ __forceinline__ void leave() const {
        const int left = share(thread == 0 ? atomicAdd(plan.counts + 1, 1) : 0);
        if (left < Shape::kGrid - 1) return;
        if constexpr (kWaits) {
            for (int head = thread; head < Tile::kAllHeads; head += Tile::kCopyThreads) {
                wait_partials(head);
                plan.counts[2 + head] = 0;
            }
        }
        if (thread == 0) plan.counts[0] = plan.counts[1] = 0;
    }

    // Waits until all partial items of the head are counted.
    __device__ __forceinline__ void wait_partials(int head) const {
        constexpr int kPartialWarps = Shape::kPartialItems * Tile::kFragments;
        while (load_acquired(plan.counts + 2 + head) < kPartialWarps) continue;
    }

    __device__ __forceinline__ void publish(int ticket, int length = 0, int chunks = 0) {
        if (thread == 0) {
            *shared.ticket(buffer.at) = ticket;
            if constexpr (Tile::kPadded) {
                *shared.length(buffer.at) = length;
                *shared.chunks_taken(buffer.at) = chunks;
            }
            arrive(shared.item_full(buffer.at));
        }
        arrive_with_copies(shared.item_full(buffer.at));
        buffer.advance();
    }

    // Returns the next ticket, to the first thread alone where they are drawn. What the plan says of the first item is
    // read while the kernel before this one ends.
    __device__ __forceinline__ int copy_item(int ticket) {
        const HeadItem taken = head_item_of<Shape>(ticket);
        const int batch = taken.head / Tile::kHeads, channels = taken.head % Tile::kHeads * Tile::kHeadDim;
        const int item = (Shape::kMaskBatches == 1 ? 0 : batch) * Tile::kItems + taken.item;
        const Element* queries = qkv + first_row_of<Shape>(plan, batch) * Tile::kTokenStride + channels;
        const Source source(plan, item, taken.item);
        const int length = Tile::kPadded ? plan.lengths[batch] : Tile::kSeqLen;
        const int chunks = Tile::kPadded ? chunks_within(length, item, source.chunks()) : source.chunks();
        Rows rows;
        rows.fetch(thread, [&](int row) { return source.row(row); });
        Columns next;
        next.fetch(thread, [&](int row) { return source.column(row); });
        wait_phase(shared.item_empty(buffer.at), buffer.parity ^ 1);
        copy_plan(item);
        wait_for_inputs();
        const int drawn = kDraws ? draw() : Tile::kTickets;  // on its way while this item is copied
        copy_queries(queries, rows, length);
        if constexpr (Shape::kAddBias) copy_biases(bias + channels);
        publish(ticket, length, chunks);
        for (int chunk = 0; chunk < chunks; ++chunk) {
            const Columns fetched = next;
            if (chunk + 1 < chunks) {
                next.fetch(thread, [&](int row) { return source.column((chunk + 1) * Tile::kChunk + row); });
            }
            wait_phase(shared.stage_empty(stage.at), stage.parity ^ 1);
            copy_chunk(queries + Tile::kWidth, fetched, length);
            if constexpr (Tile::kPadded) copy_columns(plan.columns + (item * Tile::kChunks + chunk) * Tile::kChunk);
            copy_steps(plan.steps + (item * Tile::kChunks + chunk) * Tile::kStepWords);
            arrive_with_copies(shared.stage_full(stage.at));
            stage.advance();
        }
        if constexpr (kWaits) copy_shelves(taken.head, source.merges(), rows);
        return drawn;
    }

    // Brings the shelves that the item merges. All that its multiplying warps wait for until then has been issued, and
    // of earlier items everything: so they, and whoever they count for, go on while this waits.
    __device__ __forceinline__ void copy_shelves(int head, int merges, const Rows& rows) {
        if (merges == 0) return;
        if (thread == 0) {
            wait_partials(head);
            __threadfence();  // what it has seen is seen by the threads that meet it at the barrier, and their copies
        }
        synchronise_some<Tile::kCopyThreads>(kBarrier);
        for (int first = 0; first < merges; first += Tile::kShelvesAtOnce) {
            wait_phase(shared.shelf_empty(), shelf.parity ^ 1);
            copy_shelf(first, merges, head, rows);
            arrive_with_copies(shared.shelf_full());
            shelf.advance();
        }
    }

    // Shelf `first`, or of a wide item that and the next ones: one for each fragment, while there are any.
    __device__ __forceinline__ void copy_shelf(int first, int merges, int head, const Rows& rows) const {
#pragma unroll
        for (int i = 0; i < Rows::kCopies; ++i) {
            const int number = rows.of(i, thread);
            const int from = first + (Tile::kWide ? (first_row + i * Tile::kCopyRows) / kFragmentRows : 0);
            if (number < 0 || from >= merges) continue;
            const int at = scratch_row<Shape>(from, head, number);
            copy_vector<Tile::kResultsAt>(shared.address + target(i),
                                          plan.sums + at * Tile::kChannels + vector * Tile::kVectorElements);
            if (vector > 0) continue;
            copy_async<Tile::kWeightBytes>(shared.result_weight(first_row + i * Tile::kCopyRows), plan.weights + at);
        }
    }

    // Chunks that the item needs of a sequence of `length`: up to the last with a column in it, none if no row lies in
    // it. The chunks of a second pass are the last: then all.
    __device__ __forceinline__ int chunks_within(int length, int item, int chunks) const {
        const int* limits = plan.limits + item * (1 + Tile::kChunks);
        if (limits[0] >= length) return 0;
        if constexpr (Tile::kPasses > 1) return chunks;
        int needed = 0;
        for (int first = 0; first < chunks; first += kWarpSize) {
            const int chunk = first + thread % kWarpSize;
            needed += __popc(__ballot_sync(kFullWarp, chunk < chunks && limits[1 + chunk] < length));
        }
        return needed;
    }

    // `head_keys` points at the head's first key; values lie kWidth elements further. Places without a column keep what
    // they held: no fragment multiplies them. A column beyond the length may be multiplied, by nothing but zeros: its
    // values must be finite.
    __device__ __forceinline__ void copy_chunk(const Element* head_keys, const Columns& fetched, int length) const {
        const Element* from = opaque(head_keys + vector * Tile::kVectorElements);
        const unsigned to = opaque(shared.keys(stage.at));
#pragma unroll
        for (int i = 0; i < Columns::kCopies; ++i) {
            const int column = fetched.of(i, thread);
            if (!has_channels() || column < 0) continue;
            const Element* key = token(from, column);
            if (Tile::kPadded && column >= length) {
                copy_async<kVectorBytes>(to + Tile::kMatrixBytes + target(i), key, false);
                continue;
            }
            copy_vector<0>(to + target(i), key);
            copy_vector<Tile::kMatrixBytes, Tile::kWidth * sizeof(Element)>(to + target(i), key);
        }
    }

    __device__ __forceinline__ void copy_columns(const int* numbers) const {
        copy_words<Tile::kChunk>(shared.steps(stage.at) + Tile::kStepWords * 4,
                                 reinterpret_cast<const unsigned*>(numbers));
    }

    __device__ __forceinline__ void copy_steps(const unsigned* words) const {
        copy_words<Tile::kStepWords>(shared.steps(stage.at), words);
    }

    // Rows that do not exist keep what they held: nothing of them is kept or stored. Rows beyond the length likewise:
    // they are stored as zeros, or, where sequences are packed, not at all. Channels beyond the head's become zeros again:
    // results, or what other warps found, have lain there since.
    __device__ __forceinline__ void copy_queries(const Element* queries, const Rows& rows, int length) const {
        const Element* from = opaque(queries + vector * Tile::kVectorElements);
        const unsigned to = opaque(shared_address(shared.queries(buffer.at)));
#pragma unroll
        for (int i = 0; i < Rows::kCopies; ++i) {
            const int number = rows.of(i, thread);
            if (number < 0 || (Tile::kPadded && number >= length)) continue;
            if (has_channels()) {
                copy_vector<0>(to + target(i), token(from, number));
            } else {
                copy_async<kVectorBytes>(to + target(i), queries, false);
            }
        }
    }

    // Row numbers, their orders and the item.
    __device__ __forceinline__ void copy_plan(int item) const {
        copy_words<Tile::kTileRows>(shared_address(shared.rows(buffer.at)),
                                    reinterpret_cast<const unsigned*>(plan.rows + item * Tile::kTileRows));
        if constexpr (Tile::kPasses > 1) {
            copy_words<Tile::kPasses * Tile::kTileRows>(
                shared_address(shared.orders(buffer.at)),
                reinterpret_cast<const unsigned*>(plan.orders + item * Tile::kPasses * Tile::kTileRows));
        }
        copy_words<sizeof(Item) / 4>(shared_address(shared.item(buffer.at)),
                                     reinterpret_cast<const unsigned*>(plan.items + item));
    }

    // The head's biases of queries and values.
    __device__ __forceinline__ void copy_biases(const Element* head_bias) const {
        for (int at = thread; at < 2 * Tile::kRowVectors; at += Tile::kCopyThreads) {
            const Element* from = head_bias + at / Tile::kRowVectors * 2 * Tile::kWidth;
            copy_async<kVectorBytes>(shared_address(shared.biases(buffer.at)) + at * kVectorBytes,
                                     from + (has_channels() ? vector * Tile::kVectorElements : 0), has_channels());
        }
    }

    template <int WORDS>
    __device__ __forceinline__ void copy_words(unsigned to, const unsigned* from) const {
#pragma unroll
        for (int at = thread * 4; at < WORDS; at += Tile::kCopyThreads * 4) copy_async<16>(to + at * 4, from + at);
    }
};

}  // namespace atoffer::gather
