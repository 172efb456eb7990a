// Block attention: what a thread block covers, and where everything lies in shared memory.
#pragma once

#include "barriers.cuh"
#include "cluster.cuh"
#include "registers.cuh"
#include "ring.cuh"
#include "wgmma.cuh"

namespace atoffer::block {

constexpr int kWarpgroupRows = 64;
constexpr int kWarpRows = 16;
constexpr int kDepth = 16;         // what a product sums over
constexpr int kWordBits = 32;      // mask bits in a word
constexpr int kVectorElements = 8;
constexpr int kPanelElements = 64;
constexpr int kPanelRowBytes = 128;
constexpr int kPanelAlignment = 1024;
constexpr int kRowFloats = 4;  // beside its sums, what a thread tells of its rows: two maxima, two totals
constexpr float kSlackLog2 = 8.0f;  // where sums are rescaled lazily, exponentials are at most 2^8

// Which columns a tile needs: see Reach of block_plan.py.
constexpr int kListed = 0, kDiagonal = 1, kSequence = 2;

template <class Shape>
struct Blocking {
    using Element = typename Shape::Element;
    static constexpr int kSeqLen = Shape::kSeqLen, kHeads = Shape::kHeads, kHeadDim = Shape::kHeadDim;
    static constexpr int kRows = Shape::kRows, kColumns = Shape::kColumns, kStages = Shape::kStages;

    static constexpr int kGroups = kRows / kWarpgroupRows;
    static constexpr int kRanks = Shape::kSplits;  // thread blocks of a cluster, which share the same 64 rows
    static constexpr int kThreads = (kGroups + Shape::kLoader) * kWarpgroupSize;
    static constexpr int kCopyThreads = Shape::kLoader ? kWarpgroupSize : kThreads;
    // Where all threads copy: blocks on their way beyond the one whose scores are computed. The buffer to be filled is
    // then that of the block before last, which no warpgroup needs for long any more.
    static constexpr int kAhead = kStages - 2;

    static constexpr int kTiles = (kSeqLen + kRows - 1) / kRows;
    static constexpr int kEndEntries = 8;  // that end a list: each rank looks two of its blocks ahead
    static constexpr int kListEntries = 1 + (kSeqLen + kColumns - 1) / kColumns + kEndEntries;
    static constexpr int kReach = Shape::kReach;
    // Whether tiles and the sequence end where blocks do, and a rule gives the blocks: then all columns are needed.
    static constexpr bool kAlwaysWhole =
        kSeqLen % kColumns == 0 && (kReach == kSequence || (kReach == kDiagonal && kRows % kColumns == 0));
    // Named barriers: 0 is everybody's; a turn's and a tile's queries are each warpgroup's.
    static constexpr int kTurnBarrier = 1, kQueryBarrier = kTurnBarrier + kGroups, kStoreBarrier = kQueryBarrier + kGroups;
    static constexpr int kWidth = kHeads * kHeadDim;
    static constexpr int kTokenStride = 3 * kWidth;  // elements from one token's q, k, v to the next

    static constexpr int kRowVectors = kHeadDim / kVectorElements;
    static constexpr int kPanels = kHeadDim / kPanelElements;
    static constexpr int kPanelBytes = kColumns * kPanelRowBytes;  // of keys or values
    static constexpr int kMatrixBytes = kPanels * kPanelBytes;
    static constexpr int kRowWords = kColumns / kWordBits;
    // Queries that need no bias are copied to where products take them from; else they come by way of registers.
    static constexpr bool kCopiesQueries = Shape::kSharedQueries && !Shape::kAddBias;
    static constexpr int kQueryPanelBytes = kWarpgroupRows * kPanelRowBytes;
    static constexpr int kQueryBytes = Shape::kSharedQueries ? kGroups * kPanels * kQueryPanelBytes : 0;

    // Shared memory, from a multiple of 1024 bytes on: queries, keys and values of each stage, barriers; partial results,
    // those of the other ranks for the rows that this one finishes. Queries and stages make room for what is stored in
    // the end.
    static constexpr int kStagesAt = kQueryBytes;
    static constexpr int kBarriersAt = kStagesAt + kStages * 2 * kMatrixBytes;
    static constexpr int kPartialBarrierAt = kBarriersAt + kStages * 3 * kBarrierBytes;
    static constexpr int kPartialsAt = (kPartialBarrierAt + kBarrierBytes + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
    static constexpr int kFinishedWarps = kWarpgroupSize / kWarpSize / kRanks;  // whose rows a rank finishes
    static constexpr int kPartialVectors = (kHeadDim / 2 + kRowFloats) / 4;     // a thread's
    static constexpr int kPartialBytes = kPartialVectors * kWarpSize * kVectorBytes;  // a warp's
    static constexpr int kPartialsBytes = (kRanks - 1) * kFinishedWarps * kPartialBytes;
    static constexpr int kSharedBytes =
        kPanelAlignment + (kRanks > 1 ? kPartialsAt + kPartialsBytes : kPartialBarrierAt);

    static_assert(sizeof(Element) == 2, "tensor cores take 16-bit elements");
    static_assert(kHeadDim == 64 || kHeadDim == 128, "heads are one or two panels wide");
    static_assert(kRows % kWarpgroupRows == 0, "a warpgroup covers 64 rows");
    static_assert(kColumns % kWordBits == 0, "a row of a bitmap is whole words");
    static_assert(kStages >= (Shape::kLoader ? 2 : 3), "a block is copied while two others are in use");
    static_assert(kSharedBytes == Shape::kSharedBytes, "the launch asks for the shared memory that is laid out");
    static_assert(kStoreBarrier < 16, "there are 16 named barriers");
    static_assert(kRanks == 1 || (kGroups == 1 && !Shape::kLoader),
                  "ranks that share rows have one warpgroup, which copies for itself");
    static_assert(kWarpgroupSize / kWarpSize % kRanks == 0, "each rank finishes as many warps' rows as the others");
    static_assert(2 * kRanks <= kEndEntries, "what is read ahead of a list's end is there");
    static_assert(kRows * kRowVectors * kVectorBytes <= kBarriersAt, "queries and stages have room for the tile's results");
    static_assert(Shape::kLoader || (kRows - kWarpgroupRows + kColumns - 1) / kColumns <= kAhead,
                  "a warpgroup that ends at its diagonal has begun all copies that the others wait for");
};

// Of a list: a column block, which bitmap says what is kept of it (-1: everything), and which columns any row of the
// tile keeps. The first of a list holds the row tile and its number of blocks instead.
template <class Shape>
struct alignas(16) Entry {
    int number, bitmap;
    unsigned wanted[Blocking<Shape>::kRowWords];
};

// ---- The ring of buffers.

template <class Shape>
struct Ring {
    using Block = Blocking<Shape>;

    unsigned base;  // shared address of what Blocking lays out

    __device__ __forceinline__ unsigned keys(int stage) const {
        return base + Block::kStagesAt + stage * 2 * Block::kMatrixBytes;
    }
    __device__ __forceinline__ unsigned values(int stage) const { return keys(stage) + Block::kMatrixBytes; }
    // Barriers of a stage: its keys have come, its values have come, it is no longer needed.
    __device__ __forceinline__ unsigned keys_here(int stage) const {
        return base + Block::kBarriersAt + stage * 3 * kBarrierBytes;
    }
    __device__ __forceinline__ unsigned values_here(int stage) const { return keys_here(stage) + kBarrierBytes; }
    __device__ __forceinline__ unsigned emptied(int stage) const { return keys_here(stage) + 2 * kBarrierBytes; }

    // Where rank `to`, which finishes the rows of warp `warp`, has the partial results that rank `from` found for them.
    __device__ __forceinline__ unsigned partial(int from, int to, int warp) const {
        const int place = (from - to - 1 + Block::kRanks) % Block::kRanks;  // among the others
        return base + Block::kPartialsAt +
               (place * Block::kFinishedWarps + warp % Block::kFinishedWarps) * Block::kPartialBytes;
    }
    __device__ __forceinline__ unsigned partials_here() const { return base + Block::kPartialBarrierAt; }

    __device__ __forceinline__ void initialise() const {
#pragma unroll
        for (int stage = 0; stage < Block::kStages; ++stage) {
            start_barrier(keys_here(stage), Block::kCopyThreads);
            start_barrier(values_here(stage), Block::kCopyThreads);
            start_barrier(emptied(stage), Block::kGroups * kWarpgroupSize / kWarpSize);  // one arrival a warp
        }
        if constexpr (Block::kRanks > 1) start_barrier(partials_here(), 1);
    }
    __device__ __forceinline__ void expect_partials() const {
        if (threadIdx.x == 0) arrive_expecting(partials_here(), Block::kPartialsBytes);
    }
};

// ---- Tasks.

// What a thread block has to do: one (row tile, head, sequence). Where the mask's reach is a rule, it follows from the
// block's number; else from the head of a list, which has to come from device memory first.
//
// Thread blocks are numbered so that heads and sequences whose keys and values fit into the L2 cache together
// (kPairsAtOnce) run at the same time, and among them the tiles with most work first. Where all blocks run at once, a
// multiprocessor has blocks whose numbers are a wave apart: then those after the first wave begin with least work.
//
//   wave 0   4 4 4 3    most work first
//   wave 1   1 1 1 2    so no multiprocessor has much more to do than another
//   wave 2   2 3 3
template <class Shape>
struct Task {
    using Block = Blocking<Shape>;

    int head, batch, tile;
    int count;  // of column blocks
    const Entry<Shape>* entries;

    static constexpr int kPairs = Shape::kBatch * Block::kHeads, kTasks = kPairs * Block::kTiles;

    __device__ __forceinline__ void read(const Entry<Shape>* lists, int block) {
        const int number = Block::kRanks > 1 ? block : in_waves(block);
        constexpr int kAtOnce = Shape::kPairsAtOnce;
        const int first_pair = number / (kAtOnce * Block::kTiles) * kAtOnce;
        const int pairs = min(kAtOnce, kPairs - first_pair);
        const int within = number - first_pair * Block::kTiles;
        head = (first_pair + within % pairs) % Block::kHeads;
        batch = (first_pair + within % pairs) / Block::kHeads;
        const int mask = Shape::kMaskBatches == 1 ? 0 : batch;
        const int place = within / pairs;
        entries = lists + (mask * Block::kTiles + place) * Block::kListEntries + 1;
        if constexpr (Block::kReach == kListed) {
            tile = entries[-1].number;
            count = entries[-1].bitmap;
        } else {
            tile = Block::kTiles - 1 - place;
            count = blocks_before(needed_before(Block::kRows));
        }
    }

    __device__ __forceinline__ int first_row() const { return tile * Block::kRows; }
    // Where a rule says which columns the first `rows` rows of the tile need: those before this one.
    __device__ __forceinline__ int needed_before(int rows) const {
        return Block::kReach == kSequence ? Block::kSeqLen : min(first_row() + rows, Block::kSeqLen);
    }
    // Blocks that warpgroup `group` attends to. All are alike where they take turns.
    __device__ __forceinline__ int count_of(int group) const {
        if constexpr (Block::kReach != kDiagonal || Shape::kLoader) return count;
        return blocks_before(needed_before((group + 1) * kWarpgroupRows));
    }
    static __device__ __forceinline__ int in_waves(int block) {
        const int wave = multiprocessors();
        return block < wave || kTasks > Shape::kResidents * wave ? block : kTasks - 1 - (block - wave);
    }
    static __device__ __forceinline__ int blocks_before(int column) {
        return (column + Block::kColumns - 1) / Block::kColumns;
    }
    // In elements: where the head's first query, the tile's first query, and its first result are.
    __device__ __forceinline__ int head_at() const {
        return batch * Block::kSeqLen * Block::kTokenStride + head * Block::kHeadDim;
    }
    __device__ __forceinline__ int queries_at() const { return head_at() + first_row() * Block::kTokenStride; }
    __device__ __forceinline__ int result_at() const {
        return Shape::kMerged ? (batch * Block::kSeqLen + first_row()) * Block::kWidth + head * Block::kHeadDim
                              : ((batch * Block::kHeads + head) * Block::kSeqLen + first_row()) * Block::kHeadDim;
    }
};

}  // namespace atoffer::block
