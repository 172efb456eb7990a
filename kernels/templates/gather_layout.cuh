// Gathering attention: what an item is, what its block and warps cover, and where everything lies in shared memory.
#pragma once

#include "barriers.cuh"
#include "registers.cuh"
#include "ring.cuh"
#include "swizzle.cuh"

namespace atoffer::gather {

constexpr int kGroupColumns = 16;    // columns that an ldmatrix takes in: the depth of the product with V
constexpr int kGroupBits = 8;        // mask bits that a lane needs of a group
constexpr int kBlockColumns = 64;    // columns of a fragment that a lane's mask word covers: 4 groups
constexpr int kBlockGroups = kBlockColumns / kGroupColumns;
constexpr int kOffsetWords = kBlockColumns / 2;           // of a block in the plan: 16-bit offsets of its columns,
constexpr int kBlockWords = kOffsetWords + kWarpSize;     // then bits
constexpr float kNoBase = -3e38f;                         // 2^kNoBase is nothing beside any other
constexpr float kSlackLog2 = 8.0f;                        // exponentials are at most 2^8
constexpr int kFinal = -1;
constexpr int kNoTicket = -1;
constexpr int kNoHead = -1;
constexpr int kAlignment = 256;  // of rows in shared memory: the low bits of an address tell a row's vectors apart

__host__ __device__ constexpr int aligned(int bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// What an item is: see GatherPlan of gather_plan.py.
struct alignas(16) Item {
    int chunks;   // to be copied
    int kept;     // the last of them, which the second pass needs
    int shelf;    // where to leave a partial result; else kFinal, or less of a wide item
    int merges;   // shelves to merge
};

// How much a row's partial sums weigh: they are normalised, `log` is log2 of their sum of exponentials.
template <class Element>
struct Weight {
    static constexpr float total = 1.0f;
    float log;
};

// float32: sums and their total are relative to 2^log. With a total in it, rounding a logarithm in the thousands would
// cost more than any rounding of float32.
template <>
struct alignas(8) Weight<float> {
    float log, total;
};

template <class Element>
struct Plan {
    const Item* items;
    const int* rows;
    const int* orders;   // where there are two passes
    const int* columns;  // where they are not computed, or sequences have lengths
    const unsigned* steps;
    Element* sums;  // scratch: (shelves, batch * heads, shelved rows, channels in the order of a lane)
    Weight<Element>* weights;  // scratch: (shelves, batch * heads, shelved rows)
    int* counts;  // scratch, zeros at rest: items drawn, blocks done; for each head: warps done with partial items
    const int* lengths = nullptr;  // (batch), where sequences have lengths
    const int* limits = nullptr;   // for each item: its lowest row, and the lowest column from each chunk on
    const int* offsets = nullptr;  // (batch), where sequences are packed: the rows at which they begin
};

// What the block and its warps cover, derived from the constants of a rendered shape.
template <class Shape>
struct Tiling {
    using Element = typename Shape::Element;
    static constexpr int kSeqLen = Shape::kSeqLen, kHeads = Shape::kHeads, kHeadDim = Shape::kHeadDim;
    static constexpr int kTileRows = Shape::kTileRows, kChunk = Shape::kChunk, kStages = Shape::kStages;
    static constexpr int kStep = Shape::kStep, kChunks = Shape::kChunks, kItems = Shape::kItems;
    static constexpr int kPasses = Shape::kPasses, kBuffers = Shape::kBuffers;
    static constexpr bool kPadded = Shape::kPadded, kPacked = Shape::kPacked;
    static constexpr int kAllHeads = Shape::kBatch * kHeads;
    static constexpr int kTickets = kAllHeads * kItems;
    static constexpr bool kShelves = Shape::kPartialItems > 0;
    static constexpr bool kWide = Shape::kWide;

    static constexpr int kThreads = Shape::kWarps * kWarpSize;  // that multiply
    static constexpr int kCopyThreads = Shape::kCopyWarps * kWarpSize;
    static constexpr int kFragments = kTileRows / kFragmentRows;
    static constexpr int kStepWarps = Shape::kWarps / kFragments;  // warps that share a fragment
    static constexpr int kSteps = Shape::kFragmentColumns / kStep;
    static constexpr int kBlocks = (Shape::kFragmentColumns + kBlockColumns - 1) / kBlockColumns;

    static constexpr int kWidth = kHeads * kHeadDim;
    static constexpr int kTokenStride = 3 * kWidth;  // elements from one token's q, k, v to the next

    static constexpr int kChannels = kHeadDim <= 32 ? 32 : kHeadDim <= 64 ? 64 : 128;  // of a row in shared memory
    static constexpr bool kEven = kChannels == kHeadDim;                               // zeros beyond the head's
    static constexpr int kRowBytes = kChannels * static_cast<int>(sizeof(Element));
    static constexpr int kRowVectors = kRowBytes / kVectorBytes;
    static constexpr int kVectorElements = kVectorBytes / sizeof(Element);
    static constexpr int kCopyRows = kCopyThreads / kRowVectors;          // rows that one pass of the copying warps takes
    static constexpr int kWarpRows = kWarpSize / kRowVectors;             // the same of one warp

    static constexpr int kDepthSteps = kRowVectors / 2;  // mma steps over a head's channels
    static constexpr int kGroups = kStep / kGroupColumns;
    static constexpr int kScoreTiles = kStep / kMmaColumns;         // mma results across a step's columns
    static constexpr int kSumTiles = kChannels / kMmaColumns;       // mma results across the channels
    static constexpr int kPartialFloats = 4 * kSumTiles + 4;        // a lane's sums, bases and totals
    static constexpr int kLaneVectors = kRowVectors / kQuad;        // of a row's channels, those that a lane holds
    static constexpr bool kExact = kSame<Element, float>;           // partial results are kept with all their bits

    // Shared memory: chunks; items; rows' weights of the first pass, or a shelf; results of warps that share a fragment;
    // barriers; a ticket.
    static constexpr int kMatrixBytes = kChunk * kRowBytes;  // K or V of one chunk
    static constexpr int kPassWords = kFragments * kBlocks * kBlockWords;
    static constexpr int kStepWords = kPasses * kPassWords;
    static constexpr int kColumnBytes = kPadded ? kChunk * 4 : 0;
    static constexpr int kStageBytes = aligned(2 * kMatrixBytes + kStepWords * 4 + kColumnBytes);
    static constexpr int kQueryBytes = kTileRows * kRowBytes;
    static constexpr int kNumbers = kTileRows + (kPasses > 1 ? kPasses * kTileRows : 0);  // rows, their orders
    static constexpr int kWeightBytes = sizeof(Weight<Element>);
    static constexpr int kShareBytes = kWide ? kTileRows * kWeightBytes : 0;
    static constexpr int kItemBytes =
        aligned(kQueryBytes + 2 * kRowBytes + kNumbers * 4 + sizeof(Item) + kShareBytes + 16);
    static constexpr int kItemsAt = kStages * kStageBytes;
    static constexpr int kResultsAt = kItemsAt + kBuffers * kItemBytes;
    static constexpr int kShelfBytes = kShelves ? kQueryBytes : 0;
    static constexpr int kShelvesAtOnce = kWide ? kFragments : 1;  // that an item merges: of a wide one, one a fragment
    static constexpr int kResultWeightsAt = kResultsAt + kShelfBytes;
    static constexpr int kPartialsAt = kResultWeightsAt + (kPasses > 1 || kShelves ? kTileRows * kWeightBytes : 0);
    static constexpr int kWarpBytes = (kStepWarps - 1) * kFragments * kPartialFloats * kWarpSize * 4;
    static constexpr int kBarriersAt = kPartialsAt + kWarpBytes;
    static constexpr int kBarriers = 2 * (kStages + kBuffers + kShelves);
    static constexpr int kSharedBytes = kBarriersAt + (kBarriers + 1) * kBarrierBytes;

    static_assert(!kPacked || (kPadded && Shape::kMerged), "packed sequences have lengths, and rows of tokens alone");
    static_assert(sizeof(Element) == 2 || kExact, "elements are float32, or 16-bit for tensor cores");
    static_assert(kHeadDim % kVectorElements == 0 && kHeadDim <= 128, "a row is whole vectors, at most 128 channels");
    static_assert(kBuffers == 1 || kBuffers == 2, "queries of the next item wait in shared memory, or of none");
    static_assert(kTileRows % kFragmentRows == 0, "a warp covers 16 rows");
    static_assert(kPasses == 1 || kStepWarps == 1, "an item of two passes has one warp for each fragment");
    static_assert(kPasses == 1 || !kShelves, "results of a pass and of a shelf would lie in the same place");
    static_assert(kPasses == 1 || !kWide, "results of a pass and of a share would lie in the same place");
    static_assert(Shape::kWarps % kFragments == 0, "each fragment has the same number of warps");
    static_assert(kStep <= kBlockColumns && kBlockColumns % kStep == 0, "a step lies in one block of columns");
    static_assert(kStep % kGroupColumns == 0 && kChunk % kStep == 0, "a chunk is whole steps of whole groups");
    static_assert(kChunk <= 256, "a place is a byte");
    static_assert(kMatrixBytes <= 1 << 16, "an offset in a chunk has 16 bits");
    static_assert(kCopyThreads % kRowVectors == 0, "a thread copies the same channels of every row");
    static_assert((kCopyRows & (kCopyRows - 1)) == 0, "rows a power of two apart: keys of the swizzle add up");
    static_assert(Shape::kRegisters == 0 || (Shape::kWarps % kGroupWarps == 0 && Shape::kCopyWarps % kGroupWarps == 0),
                  "registers are given from warpgroup to warpgroup");
    static_assert(kAllHeads % Shape::kGroupHeads == 0, "heads fall into whole groups");
    static_assert(kPasses <= 2, "a far pass is followed by a near one, and no other");
    static_assert(Shape::kFragmentColumns % kStep == 0, "a fragment's columns of a chunk are whole steps");
    static_assert(!Shape::kComputed || (!kShelves && !kWide && Shape::kMaskBatches == 1),
                  "computed items are final, none is wide, and they are the same for every sequence");
    static_assert(kSharedBytes == Shape::kSharedBytes, "the launch gives the shared memory that is laid out here");
};

// The row of all tokens at which a sequence begins.
template <class Shape>
__device__ __forceinline__ int first_row_of(const Plan<typename Shape::Element>& plan, int batch) {
    if constexpr (Shape::kPacked) return plan.offsets[batch];
    return batch * Shape::kSeqLen;
}

// ---- Tickets: which item a block takes next.

struct HeadItem {
    int head, item;
};

// What ticket `number` stands for. Heads go in groups of kGroupHeads, so that keys and values are still in the cache when
// they are read again. In turn: each item of all of them, then the next. Partial items come first, then the longest
// (computed ones: those of the last rows), and last those that merge, so that blocks end alike and few wait. Not in turn:
// each head's partial items, then each head's final ones. So where most final items merge, the shelves of the first heads
// are ready while those of the others are being filled.
template <class Shape>
__device__ __forceinline__ HeadItem head_item_of(int number) {
    constexpr int kHeads = Shape::kGroupHeads, kPartial = Shape::kPartialItems, kFinals = Shape::kItems - kPartial;
    const int first_head = number / (kHeads * Shape::kItems) * kHeads, at = number % (kHeads * Shape::kItems);
    if constexpr (Shape::kInTurn) {
        return {first_head + at % kHeads, at / kHeads};
    } else {
        const int final_at = at - kHeads * kPartial;
        if constexpr (kPartial > 0) {
            if (final_at < 0) return {first_head + at / kPartial, at % kPartial};
        }
        return {first_head + final_at / kFinals, kPartial + final_at % kFinals};
    }
}

// Where row `row` of a head lies on a shelf, in rows of scratch.
template <class Shape>
__device__ __forceinline__ int scratch_row(int shelf, int head, int row) {
    return (shelf * Tiling<Shape>::kAllHeads + head) * Shape::kShelvedRows + row - Shape::kFirstShelved;
}

// ---- Shared memory.

template <class Shape>
struct Shared {
    using Tile = Tiling<Shape>;

    char* base;
    unsigned address;

    __device__ __forceinline__ explicit Shared(char* memory) : base(memory), address(shared_address(memory)) {}

    __device__ __forceinline__ unsigned keys(int stage) const { return address + stage * Tile::kStageBytes; }
    __device__ __forceinline__ unsigned values(int stage) const { return keys(stage) + Tile::kMatrixBytes; }
    __device__ __forceinline__ unsigned steps(int stage) const { return keys(stage) + 2 * Tile::kMatrixBytes; }
    __device__ __forceinline__ const unsigned* step_words(int stage) const {
        return reinterpret_cast<const unsigned*>(base + stage * Tile::kStageBytes + 2 * Tile::kMatrixBytes);
    }

    // Numbers of the chunk's columns, where sequences have lengths.
    __device__ __forceinline__ const int* columns(int stage) const {
        return reinterpret_cast<const int*>(step_words(stage) + Tile::kStepWords);
    }

    // A buffer: queries; biases of queries and values; row numbers; their orders; the item; weights of shares; what is
    // taken of it, the sequence's length, its ticket.
    __device__ __forceinline__ int buffer(int item) const { return Tile::kItemsAt + item * Tile::kItemBytes; }
    __device__ __forceinline__ char* queries(int item) const { return base + buffer(item); }
    __device__ __forceinline__ const char* biases(int item) const { return queries(item) + Tile::kQueryBytes; }
    __device__ __forceinline__ const int* rows(int item) const {
        return reinterpret_cast<const int*>(biases(item) + 2 * Tile::kRowBytes);
    }
    __device__ __forceinline__ const int* orders(int item) const { return rows(item) + Tile::kTileRows; }
    __device__ __forceinline__ const Item* item(int item) const {
        return reinterpret_cast<const Item*>(rows(item) + Tile::kNumbers);
    }
    __device__ __forceinline__ Weight<typename Shape::Element>* share_weights(int item) const {
        return reinterpret_cast<Weight<typename Shape::Element>*>(queries(item) + Tile::kQueryBytes +
                                                                  2 * Tile::kRowBytes + Tile::kNumbers * 4 + sizeof(Item));
    }
    __device__ __forceinline__ int* ticket(int item) const {
        return reinterpret_cast<int*>(queries(item) + Tile::kItemBytes - sizeof(int));
    }
    __device__ __forceinline__ int* length(int item) const { return ticket(item) - 1; }
    __device__ __forceinline__ int* chunks_taken(int item) const { return ticket(item) - 2; }

    __device__ __forceinline__ float* partials() const { return reinterpret_cast<float*>(base + Tile::kPartialsAt); }
    // Vector `vector` of a row's sums, as the first pass or a share leaves them in the place of its queries, and of a shelf;
    // the rows' weights of a pass and of a shelf.
    __device__ __forceinline__ uint4* pass_vector(int item, int row, int vector) const {
        return reinterpret_cast<uint4*>(queries(item) + swizzled<Tile::kRowVectors>(row, vector));
    }
    __device__ __forceinline__ uint4* shelf_vector(int row, int vector) const {
        return reinterpret_cast<uint4*>(base + Tile::kResultsAt + swizzled<Tile::kRowVectors>(row, vector));
    }
    __device__ __forceinline__ Weight<typename Shape::Element>* result_weights() const {
        return reinterpret_cast<Weight<typename Shape::Element>*>(base + Tile::kResultWeightsAt);
    }

    __device__ __forceinline__ unsigned result_weight(int row) const {
        return address + Tile::kResultWeightsAt + row * Tile::kWeightBytes;
    }

    // Those of items come first: racecheck does not see an arrival of copies at a barrier that lies below the one whose
    // address the compiler holds, and a block meets an item's before its chunks'.
    __device__ __forceinline__ unsigned item_full(int item) const {
        return address + Tile::kBarriersAt + item * kBarrierBytes;
    }
    __device__ __forceinline__ unsigned item_empty(int item) const { return item_full(Tile::kBuffers + item); }
    __device__ __forceinline__ unsigned stage_full(int stage) const { return item_full(2 * Tile::kBuffers + stage); }
    __device__ __forceinline__ unsigned stage_empty(int stage) const { return stage_full(Tile::kStages + stage); }
    __device__ __forceinline__ unsigned shelf_full() const { return stage_empty(Tile::kStages); }
    __device__ __forceinline__ unsigned shelf_empty() const { return shelf_full() + kBarrierBytes; }
    __device__ __forceinline__ int* drawn() const {  // the next ticket, on its way between copying warps
        return reinterpret_cast<int*>(base + Tile::kBarriersAt + Tile::kBarriers * kBarrierBytes);
    }

    // By all threads: zeros wherever rows lie, for the channels beyond the head's that no copy ever writes.
    __device__ __forceinline__ void clear_rows() const {
        constexpr int kAllThreads = Tile::kThreads + Tile::kCopyThreads;
        for (int at = threadIdx.x * kVectorBytes; at < Tile::kResultsAt; at += kAllThreads * kVectorBytes) {
            *reinterpret_cast<uint4*>(base + at) = make_uint4(0, 0, 0, 0);
        }
    }

    // By one thread, before the others use them. Every thread arrives for itself: what it read or wrote before is
    // ordered by its own arrival, not by a lane that speaks for it.
    __device__ __forceinline__ void start_barriers() const {
        for (int stage = 0; stage < Tile::kStages; ++stage) {
            start_barrier(stage_full(stage), Tile::kCopyThreads);
            start_barrier(stage_empty(stage), Tile::kThreads);
        }
        for (int item = 0; item < Tile::kBuffers; ++item) {
            start_barrier(item_full(item), Tile::kCopyThreads + 1);
            start_barrier(item_empty(item), Tile::kThreads);
        }
        if constexpr (Tile::kShelves) {
            start_barrier(shelf_full(), Tile::kCopyThreads);
            start_barrier(shelf_empty(), Tile::kFragments * kWarpSize);
        }
    }
};

}  // namespace atoffer::gather
