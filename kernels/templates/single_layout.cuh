// Attention of all columns at once: what a block covers, and where everything lies in shared memory.
#pragma once

#include "swizzle.cuh"

namespace atoffer::single {

constexpr int kStepColumns = 16;   // columns that an ldmatrix takes in: the depth of the product with V
constexpr int kStepBits = 8;       // mask bits that a lane needs of a step
constexpr int kWordSteps = 4;      // steps that a lane's mask word covers
constexpr int kSumPadding = 8;     // floats between rows of sums: a quad's rows are in distinct banks
constexpr int kAlignment = 256;    // of matrices in shared memory: the low bits of an address tell a row's vectors apart

template <class Shape>
struct Tiling {
    using Element = typename Shape::Element;
    static constexpr int kSeqLen = Shape::kSeqLen, kHeads = Shape::kHeads, kHeadDim = Shape::kHeadDim;
    static constexpr int kWidth = kHeads * kHeadDim;
    static constexpr int kTokenStride = 3 * kWidth;  // elements from one token's q, k, v to the next
    static constexpr int kRows = Shape::kRows, kColumns = Shape::kColumns, kColumnWarps = Shape::kColumnWarps;
    static constexpr int kRanks = Shape::kSplits;            // blocks of a cluster
    static constexpr int kItems = Shape::kItems;             // of each head
    static constexpr int kSharedItems = Shape::kSharedItems;  // those of clusters that share a tile

    static constexpr int kFragments = kRows / kFragmentRows;
    static constexpr int kWarps = kFragments * kColumnWarps, kThreads = kWarps * kWarpSize;
    static constexpr int kSteps = kColumns / kStepColumns;
    static constexpr int kWarpSteps = (kSteps + kColumnWarps - 1) / kColumnWarps;  // of one warp
    static constexpr int kWords = (kSteps + kWordSteps - 1) / kWordSteps;          // of mask bits, for each lane
    static constexpr int kDepthSteps = kHeadDim / kFragmentRows;                   // mma steps over a head's channels
    static constexpr int kSumTiles = kHeadDim / kMmaColumns;                       // mma results across them

    static constexpr int kVectorElements = kVectorBytes / static_cast<int>(sizeof(Element));
    static constexpr int kRowVectors = kHeadDim / kVectorElements;
    static constexpr int kCopyRows = kThreads / kRowVectors;  // rows that all threads copy at a time
    static constexpr int kQueryCopies = (kRows + kCopyRows - 1) / kCopyRows;
    static constexpr int kColumnCopies = (kColumns + kCopyRows - 1) / kCopyRows;
    static constexpr int kResultVectors = (kRows + kCopyRows - 1) / kCopyRows;  // of a thread

    static constexpr int kQueryBytes = kRows * kRowVectors * kVectorBytes;
    static constexpr int kMatrixBytes = kColumns * kRowVectors * kVectorBytes;  // K or V
    static constexpr int kSumStride = kHeadDim + kSumPadding;
    static constexpr int kFoundBytes = kFragmentRows * (kSumStride + 2) * static_cast<int>(sizeof(float));  // by a warp
    static constexpr int kBeforeValues =
        kQueryBytes + kMatrixBytes > kWarps * kFoundBytes ? kQueryBytes + kMatrixBytes : kWarps * kFoundBytes;
    static constexpr int kValuesAt = (kBeforeValues + kAlignment - 1) / kAlignment * kAlignment;
    // What other ranks found of this one's rows, a part for each vector of channels; the barrier that counts it.
    static constexpr int kFinishedRows = kRows / kRanks;
    static constexpr int kPartVectors = 1 + kVectorElements * static_cast<int>(sizeof(float)) / kVectorBytes;
    static constexpr int kRankBytes = kFinishedRows * kRowVectors * kPartVectors * kVectorBytes;  // of one rank
    static constexpr int kPartsAt = kValuesAt + kMatrixBytes;
    static constexpr int kBarrierAt = kPartsAt + kRanks * kRankBytes;
    static constexpr int kSharedBytes = kRanks == 1 ? kPartsAt : kBarrierAt + kVectorBytes;

    static_assert(sizeof(Element) == 2, "tensor cores take 16-bit elements");
    static_assert(kRows % kFragmentRows == 0, "a tile is whole fragments");
    static_assert(kColumns % kStepColumns == 0, "columns are whole steps");
    static_assert(kWordSteps % kColumnWarps == 0, "the word that has a warp's next step does not depend on the warp");
    static_assert(kThreads % kRowVectors == 0, "a thread copies the same channels of every row");
    static_assert((kCopyRows & (kCopyRows - 1)) == 0, "rows a power of two apart: keys of the swizzle add up");
    static_assert(kRows % kRanks == 0, "each rank finishes as many rows");
    static_assert(kItems % kRanks == 0 && kSharedItems % kRanks == 0, "a cluster's items are all shared, or none is");
    static_assert(kSharedBytes == Shape::kSharedBytes, "the launch gives the shared memory that is laid out here");
};

// What a warp found of its 16 rows: sums, and of each row the highest scaled score and the total of exponentials.
template <class Shape>
struct Found {
    using Tile = Tiling<Shape>;
    float* base;

    __device__ __forceinline__ Found(char* shared, int warp)
        : base(reinterpret_cast<float*>(shared + warp * Tile::kFoundBytes)) {}
    __device__ __forceinline__ float* sums(int row) const { return base + row * Tile::kSumStride; }
    __device__ __forceinline__ float2& weight(int row) const {
        return reinterpret_cast<float2*>(base + kFragmentRows * Tile::kSumStride)[row];
    }
};

}  // namespace atoffer::single
