// Attention of tiles that keep few columns: softmax(scale * Q K^T under a mask) V, all of a tile's columns at once.
//
// A thread block has one tile of neighbouring rows of one head. The plan lists the distinct columns that any of them keeps;
// all of these keys and values are in shared memory at the same time, so that nothing has to be waited for twice.
//
//   list of columns, bits     shared memory
//   rows of the tile    -- 16-byte cp.async -->  | Q (rows x W)    |  -- ldmatrix ----> Q (16 x W, registers)
//                                                |                 |                    | mma
//   3 | 17 | 40 | ...   -- 16-byte cp.async -->  | K (columns x W) |  -- ldmatrix ----> scores (16 x 16 a step, float32)
//                                                |                 |                    | mask bits, maximum, exp2
//                       -- 16-byte cp.async -->  | V (columns x W) |  -- (.trans) -+    P (16 x 16 a step, registers)
//                                                                                  +--> | mma
//                                                                                       sum (16 x W, float32)
//
// A fragment of 16 rows belongs to kColumnWarps warps, each of which takes every kColumnWarps-th step of 16 columns: so a
// warp's chain is short where there are few tiles. What they found takes the place of Q and K:
//
//   of each warp: sums (16 x W), of each row the highest score and the total  --> a thread for each vector --> result
//
// Where a few tiles keep far more columns than the others, the blocks of a cluster, its ranks, are pieces of one of these
// tiles (kRanks). The plan lists items, a tile or a piece, one for each block; the clusters that share a tile come first.
// Each rank has some of the tile's rows to finish, and gives what it found of the others to those ranks:
//
//   rank 0   columns 0 to 127   | gives rows 1, 2, 3, 5, ... | waits for rows 0, 4, 8, ... of the others, merges, stores
//   rank 1   columns 128 to 255 | gives rows 0, 2, 3, 4, ... | the same of rows 1, 5, 9, ...
#pragma once

#include "barriers.cuh"
#include "cluster.cuh"
#include "pairs.cuh"
#include "swizzle.cuh"

namespace atoffer::single {

constexpr int kFragmentRows = 16;  // rows of an mma result, and its depth
constexpr int kMmaColumns = 8;     // columns of an mma result
constexpr int kStepColumns = 16;   // columns that an ldmatrix takes in: the depth of the product with V
constexpr int kStepBits = 8;       // mask bits that a lane needs of a step
constexpr int kWordSteps = 4;      // steps that a lane's mask word covers
constexpr int kQuad = 4;           // lanes that share an mma row
constexpr int kSumPadding = 8;     // floats between rows of sums: a quad's rows are in distinct banks
constexpr int kAlignment = 256;    // of matrices in shared memory: the low bits of an address tell a row's vectors apart

// ---- What a block covers, and where everything lies in shared memory.

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

// ---- Copies: a thread copies the same vector of every kCopyRows-th row.

template <class Shape>
struct Copier {
    using Tile = Tiling<Shape>;
    using Element = typename Shape::Element;
    using Rows = Swizzle<Tile::kRowVectors>;
    static constexpr int kKeyBytes = Tile::kWidth * static_cast<int>(sizeof(Element));  // from a query to its key

    int first, vector;  // row and vector of the thread
    int rows, columns;  // that exist of the tile's rows, and that it has
    int query_at[Tile::kQueryCopies], column_at[Tile::kColumnCopies];  // where vectors of q lie, in elements
    unsigned query_to[Tile::kQueryCopies], key_to[Tile::kColumnCopies];  // where those of q and k come, by address

    // Reads the plan and computes all addresses: that needs no input.
    __device__ __forceinline__ Copier(int head_at, int first_row, const int* list, int columns, unsigned shared)
        : rows(Tile::kSeqLen - first_row), columns(columns) {
        first = static_cast<int>(threadIdx.x) / Tile::kRowVectors;
        vector = static_cast<int>(threadIdx.x) % Tile::kRowVectors;
        const int own = head_at + vector * Tile::kVectorElements;
#pragma unroll
        for (int i = 0; i < Tile::kQueryCopies; ++i) {
            query_at[i] = own + (place(i) < rows ? first_row + place(i) : 0) * Tile::kTokenStride;
            query_to[i] = shared + offset(i);
            settle(query_at[i]);
            settle(query_to[i]);
        }
#pragma unroll
        for (int i = 0; i < Tile::kColumnCopies; ++i) {
            column_at[i] = own + (place(i) < Tile::kColumns ? list[place(i)] : 0) * Tile::kTokenStride;
            key_to[i] = shared + Tile::kQueryBytes + offset(i);
            settle(column_at[i]);
            settle(key_to[i]);
        }
    }

    // The thread's i-th row of a matrix.
    __device__ __forceinline__ int place(int i) const { return first + i * Tile::kCopyRows; }

    // Rows that do not exist become zeros.
    __device__ __forceinline__ void copy_queries(const Element* qkv) const {
#pragma unroll
        for (int i = 0; i < Tile::kQueryCopies; ++i) {
            if (kEvenRows || place(i) < Tile::kRows) copy_or_clear<0, 0>(query_to[i], qkv + query_at[i], place(i) < rows);
        }
    }

    // Places without a column become zeros: their scores are dropped, their values multiplied by nothing but zeros.
    __device__ __forceinline__ void copy_keys(const Element* qkv) const {
#pragma unroll
        for (int i = 0; i < Tile::kColumnCopies; ++i) {
            if (!kEvenColumns && place(i) >= Tile::kColumns) continue;
            copy_or_clear<0, kKeyBytes>(key_to[i], qkv + column_at[i], place(i) < columns);
        }
    }

    __device__ __forceinline__ void copy_values(const Element* qkv) const {
        constexpr int kApart = Tile::kValuesAt - Tile::kQueryBytes;
#pragma unroll
        for (int i = 0; i < Tile::kColumnCopies; ++i) {
            if (!kEvenColumns && place(i) >= Tile::kColumns) continue;
            copy_or_clear<kApart, 2 * kKeyBytes>(key_to[i], qkv + column_at[i], place(i) < columns);
        }
    }

private:
    static constexpr bool kEvenRows = Tile::kRows % Tile::kCopyRows == 0;
    static constexpr bool kEvenColumns = Tile::kColumns % Tile::kCopyRows == 0;

    __device__ __forceinline__ int offset(int i) const {
        const int keys = Rows::key_sum(first) + Rows::key_sum(i * Tile::kCopyRows);
        return Rows::at(first, vector, keys) + i * Tile::kCopyRows * Tile::kRowVectors * kVectorBytes;
    }
};

// ---- Products: a warp's steps.

template <class Shape>
struct Warp {
    using Tile = Tiling<Shape>;
    using Element = typename Shape::Element;

    int lane, fragment, column_warp;
    unsigned kept[Tile::kWords];  // bit 8 s + 4 t + i: whether accumulator i of the t-th 8 columns of a word's step s is kept
    unsigned query[Tile::kDepthSteps][4];
    unsigned probabilities[Tile::kWarpSteps][4];
    float sum[Tile::kSumTiles][4];
    float highest[2], total[2];  // of the lane's two rows: scaled, of the warp's columns; of its own columns

    __device__ __forceinline__ Warp(const unsigned* words) {
        lane = threadIdx.x % kWarpSize;
        fragment = threadIdx.x / kWarpSize % Tile::kFragments;
        column_warp = threadIdx.x / kWarpSize / Tile::kFragments;
#pragma unroll
        for (int i = 0; i < Tile::kWords; ++i) {
            kept[i] = words[(fragment * Tile::kWords + i) * kWarpSize + lane];
            unsigned read = kept[i] / 2;
            settle(read);
        }
    }

    // The lane's bits of the warp's i-th step.
    __device__ __forceinline__ unsigned bits(int i) const {
        const unsigned word = kept[i * Tile::kColumnWarps / kWordSteps];
        const int step = i * Tile::kColumnWarps % kWordSteps + column_warp;
        return word >> step * kStepBits & ((1u << kStepBits) - 1);
    }

    __device__ __forceinline__ int first_column(int i) const {
        return (i * Tile::kColumnWarps + column_warp) * kStepColumns;
    }

    // Lane groups of 8 address: rows 0-7 low channels, rows 8-15 low, rows 0-7 high, rows 8-15 high.
    __device__ __forceinline__ void load_queries(unsigned queries, const Element* bias) {
        const unsigned from =
            queries + swizzled<Tile::kRowVectors>(fragment * kFragmentRows + lane % kFragmentRows, lane / kFragmentRows);
#pragma unroll
        for (int k = 0; k < Tile::kDepthSteps; ++k) {
            load_matrices(query[k], at_depth(from, k));
            if constexpr (Shape::kAddBias) {
                const auto* pairs = reinterpret_cast<const unsigned*>(bias) + k * 8 + lane % kQuad;
#pragma unroll
                for (int i = 0; i < 4; ++i) query[k][i] = add_pairs<Element>(query[k][i], pairs[i / 2 * 4]);
            }
        }
    }

    // Exponentials of the warp's columns, relative to their highest score.
    __device__ __forceinline__ void attend(unsigned keys) {
        float scores[Tile::kWarpSteps][2][4];
        highest[0] = highest[1] = negative_infinity();
#pragma unroll
        for (int i = 0; i < Tile::kWarpSteps; ++i) score(scores[i], keys, i);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            highest[r] = fmaxf(highest[r], __shfl_xor_sync(kFullWarp, highest[r], 1));
            highest[r] = fmaxf(highest[r], __shfl_xor_sync(kFullWarp, highest[r], 2)) * Shape::kScaleLog2;
            total[r] = 0.0f;
        }
        const float base[2] = {finite(highest[0]), finite(highest[1])};
#pragma unroll
        for (int i = 0; i < Tile::kWarpSteps; ++i) {
#pragma unroll
            for (int t = 0; t < 2; ++t) {
                float p[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    p[j] = exp2_fast(fmaf(scores[i][t][j], Shape::kScaleLog2, -base[j / 2]));
                    total[j / 2] += p[j];
                }
                probabilities[i][2 * t] = pack_pair<Element>(p[0], p[1]);
                probabilities[i][2 * t + 1] = pack_pair<Element>(p[2], p[3]);
            }
        }
    }

    __device__ __forceinline__ void add_values(unsigned values) {
#pragma unroll
        for (int n = 0; n < Tile::kSumTiles; ++n) {
#pragma unroll
            for (int j = 0; j < 4; ++j) sum[n][j] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < Tile::kWarpSteps; ++i) {
            if (!keeps_any(i)) continue;
            // Lane groups of 8 address: columns 0-7 low channels, 8-15 low, 0-7 high, 8-15 high.
            const int column = first_column(i) + lane % kStepColumns;
            const unsigned from = values + swizzled<Tile::kRowVectors>(column, lane / kStepColumns);
#pragma unroll
            for (int n = 0; n < Tile::kSumTiles / 2; ++n) {
                unsigned value[4];
                load_matrices_transposed(value, at_depth(from, n));
                multiply_add<Element>(sum[2 * n], probabilities[i], value[0], value[1]);
                multiply_add<Element>(sum[2 * n + 1], probabilities[i], value[2], value[3]);
            }
        }
    }

    __device__ __forceinline__ void leave(const Found<Shape>& found) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            total[r] += __shfl_xor_sync(kFullWarp, total[r], 1);
            total[r] += __shfl_xor_sync(kFullWarp, total[r], 2);
            const int row = lane / kQuad + r * kFragmentRows / 2;
            float* sums = found.sums(row) + lane % kQuad * 2;
#pragma unroll
            for (int n = 0; n < Tile::kSumTiles; ++n) {
                *reinterpret_cast<float2*>(sums + n * kMmaColumns) = make_float2(sum[n][2 * r], sum[n][2 * r + 1]);
            }
            if (lane % kQuad == 0) found.weight(row) = make_float2(highest[r], total[r]);
        }
    }

private:
    // Columns that are kept by some row of the fragment; the same for all lanes.
    __device__ __forceinline__ bool keeps_any(int i) const { return __any_sync(kFullWarp, bits(i) != 0); }

    static __device__ __forceinline__ float finite(float value) { return value == negative_infinity() ? 0.0f : value; }

    // Scores of the i-th step, -inf where they are not kept.
    __device__ __forceinline__ void score(float (&scores)[2][4], unsigned keys, int i) {
#pragma unroll
        for (int t = 0; t < 2; ++t) {
#pragma unroll
            for (int j = 0; j < 4; ++j) scores[t][j] = 0.0f;
        }
        if (keeps_any(i)) {
            // Lane groups of 8 address: columns 0-7 low channels, 0-7 high, 8-15 low, 8-15 high.
            const int column = first_column(i) + lane / 16 * 8 + lane % 8;
            const unsigned from = keys + swizzled<Tile::kRowVectors>(column, lane / 8 % 2);
#pragma unroll
            for (int k = 0; k < Tile::kDepthSteps; ++k) {
                unsigned key[4];
                load_matrices(key, at_depth(from, k));
                multiply_add<Element>(scores[0], query[k], key[0], key[1]);
                multiply_add<Element>(scores[1], query[k], key[2], key[3]);
            }
        }
        const unsigned own = bits(i);
#pragma unroll
        for (int t = 0; t < 2; ++t) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                scores[t][j] = own & 1u << (4 * t + j) ? scores[t][j] : negative_infinity();
                highest[j / 2] = fmaxf(highest[j / 2], scores[t][j]);
            }
        }
    }
};

// ---- The result: what the warps of a fragment found, then what the ranks of a cluster did, added up.

// Of a row and a vector of channels, by some of the columns: relative to 2 to the highest scaled score.
template <class Shape>
struct Part {
    float highest, total;
    alignas(kVectorBytes) float sums[Tiling<Shape>::kVectorElements];
};

template <class Shape, int N>
__device__ __forceinline__ Part<Shape> merged(const Part<Shape> (&parts)[N]) {
    Part<Shape> all{negative_infinity(), 0.0f, {}};
#pragma unroll
    for (int n = 0; n < N; ++n) all.highest = fmaxf(all.highest, parts[n].highest);
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const float factor = parts[n].highest == negative_infinity() ? 0.0f : exp2_fast(parts[n].highest - all.highest);
        all.total = fmaf(factor, parts[n].total, all.total);
#pragma unroll
        for (int i = 0; i < Tiling<Shape>::kVectorElements; ++i) {
            all.sums[i] = fmaf(factor, parts[n].sums[i], all.sums[i]);
        }
    }
    return all;
}

template <class Shape>
__device__ __forceinline__ Part<Shape> part_of_warps(char* shared, int place, int vector) {
    using Tile = Tiling<Shape>;
    Part<Shape> parts[Tile::kColumnWarps];
#pragma unroll
    for (int c = 0; c < Tile::kColumnWarps; ++c) {
        const Found<Shape> found(shared, c * Tile::kFragments + place / kFragmentRows);
        const float2 weight = found.weight(place % kFragmentRows);
        const float* sums = found.sums(place % kFragmentRows) + vector * Tile::kVectorElements;
        parts[c].highest = weight.x;
        parts[c].total = weight.y;
#pragma unroll
        for (int i = 0; i < Tile::kVectorElements; i += 4) {
            *reinterpret_cast<float4*>(parts[c].sums + i) = *reinterpret_cast<const float4*>(sums + i);
        }
    }
    return merged<Shape>(parts);
}

// The ranks of a cluster that share a tile: rank r finishes rows r, r + kRanks, ...
template <class Shape>
struct Ranks {
    using Tile = Tiling<Shape>;
    char* shared;
    int rank;

    // Starts the barrier that counts what the others will give; await_begun says that all have.
    __device__ __forceinline__ void begin() const {
        if (threadIdx.x == 0) start_barrier(barrier(), 1);
        announce_begun();
    }

    // Says how much that is: once the block has met since begin(), or racecheck takes it for a race.
    __device__ __forceinline__ void expect() const {
        if (threadIdx.x == 0) arrive_expecting(barrier(), (Tile::kRanks - 1) * Tile::kRankBytes);
    }

    __device__ __forceinline__ bool finishes(int place) const { return place % Tile::kRanks == rank; }

    __device__ __forceinline__ void give(const Part<Shape>& part, int place, int vector) const {
        const int finisher = place % Tile::kRanks;
        const unsigned to = remote_address(shared_address(shared) + place_of(rank, place, vector), finisher);
        const unsigned counted = remote_address(barrier(), finisher);
        store_remote(to, make_float4(part.highest, part.total, 0.0f, 0.0f), counted);
#pragma unroll
        for (int i = 1; i < Tile::kPartVectors; ++i) {
            const float* four = part.sums + 4 * (i - 1);
            store_remote(to + i * kStride, make_float4(four[0], four[1], four[2], four[3]), counted);
        }
    }

    __device__ __forceinline__ void await_given() const { wait_phase(barrier(), 0); }

    // `own` and what the others gave of it.
    __device__ __forceinline__ Part<Shape> all(const Part<Shape>& own, int place, int vector) const {
        Part<Shape> parts[Tile::kRanks];
        parts[0] = own;
#pragma unroll
        for (int other = 1; other < Tile::kRanks; ++other) {
            const char* from = shared + place_of((rank + other) % Tile::kRanks, place, vector);
            const float4 weight = *reinterpret_cast<const float4*>(from);
            parts[other].highest = weight.x;
            parts[other].total = weight.y;
#pragma unroll
            for (int i = 1; i < Tile::kPartVectors; ++i) {
                *reinterpret_cast<float4*>(parts[other].sums + 4 * (i - 1)) =
                    *reinterpret_cast<const float4*>(from + i * kStride);
            }
        }
        return merged<Shape>(parts);
    }

private:
    static constexpr int kStride = Tile::kFinishedRows * Tile::kRowVectors * kVectorBytes;  // to a part's next vector

    __device__ __forceinline__ unsigned barrier() const { return shared_address(shared) + Tile::kBarrierAt; }

    static __device__ __forceinline__ int place_of(int from, int place, int vector) {
        return Tile::kPartsAt + from * Tile::kRankBytes +
               (place / Tile::kRanks * Tile::kRowVectors + vector) * kVectorBytes;
    }
};

// `bias` points at the values' biases of the vector; rows that keep nothing become zeros.
template <class Shape>
__device__ __forceinline__ uint4 packed(const Part<Shape>& part, const typename Shape::Element* bias) {
    if (part.total == 0.0f) return make_uint4(0, 0, 0, 0);
    const float factor = __fdividef(1.0f, part.total);
    unsigned pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float low = part.sums[2 * i] * factor, high = part.sums[2 * i + 1] * factor;
        if constexpr (Shape::kAddBias) {
            low += to_float(bias[2 * i]);
            high += to_float(bias[2 * i + 1]);
        }
        pairs[i] = pack_pair<typename Shape::Element>(low, high);
    }
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// tiles, counts: (mask_batches, kItems), the tile of each item, -1 for none, and its columns, which `columns`:
// (mask_batches, kItems, kColumns) lists first; words: (mask_batches, kItems, fragments, kWords, 32), see `lane_words` of
// gather_plan.py.
template <class Shape>
__device__ __forceinline__ void single_attention(const typename Shape::Element* qkv, const typename Shape::Element* bias,
                                                 const int* tiles, const int* counts, const int* columns,
                                                 const unsigned* words, typename Shape::Element* result) {
    using Tile = Tiling<Shape>;
    using Element = typename Shape::Element;
    constexpr int kPairs = Shape::kBatch * Tile::kHeads, kResultStride = Shape::kMerged ? Tile::kWidth : Tile::kHeadDim;
    extern __shared__ __align__(256) char memory[];
    const unsigned queries = shared_address(memory);

    const int rank = static_cast<int>(blockIdx.x) % Tile::kRanks, cluster = static_cast<int>(blockIdx.x) / Tile::kRanks;
    const int pair = cluster % kPairs, batch = pair / Tile::kHeads, head = pair % Tile::kHeads;
    const int item = cluster / kPairs * Tile::kRanks + rank;
    const int planned = (Shape::kMaskBatches == 1 ? 0 : batch) * Tile::kItems + item;
    const bool shares = Tile::kRanks > 1 && item < Tile::kSharedItems;
    const int first_row = tiles[planned] * Tile::kRows;
    if (Tile::kRanks > 1 && first_row < 0) return;  // of a cluster that shares a tile every rank, or none
    const int head_at = batch * Tile::kSeqLen * Tile::kTokenStride + head * Tile::kHeadDim;
    const Copier<Shape> copier(head_at, first_row, columns + planned * Tile::kColumns, counts[planned], queries);
    Warp<Shape> warp(words + planned * Tile::kFragments * Tile::kWords * kWarpSize);
    const Ranks<Shape> ranks{memory, rank};
    if (shares) ranks.begin();
    wait_for_inputs();
    let_next_begin();

    copier.copy_queries(qkv);
    copier.copy_keys(qkv);
    commit_copies();
    copier.copy_values(qkv);
    commit_copies();
    const Element* head_bias = bias + head * Tile::kHeadDim;
    wait_copies<1>();
    __syncthreads();
    if (shares) ranks.expect();
    warp.load_queries(queries, head_bias);
    warp.attend(queries + Tile::kQueryBytes);
    wait_copies<0>();
    __syncthreads();  // values are there; nobody needs queries and keys any more
    warp.add_values(queries + Tile::kValuesAt);
    warp.leave(Found<Shape>(memory, threadIdx.x / kWarpSize));
    __syncthreads();

    result += Shape::kMerged ? batch * Tile::kSeqLen * Tile::kWidth + head * Tile::kHeadDim
                             : pair * Tile::kSeqLen * Tile::kHeadDim;
    const int channel = copier.vector * Tile::kVectorElements;
    const auto store = [&](int place, const Part<Shape>& part) {
        const uint4 vector = packed<Shape>(part, head_bias + 2 * Tile::kWidth + channel);
        *reinterpret_cast<uint4*>(result + (first_row + place) * kResultStride + channel) = vector;
    };
    if (!shares) {
#pragma unroll
        for (int i = 0; i < Tile::kResultVectors; ++i) {
            const int place = copier.place(i);
            if (place >= Tile::kRows || place >= copier.rows) continue;
            store(place, part_of_warps<Shape>(memory, place, copier.vector));
        }
        return;
    }
    Part<Shape> parts[Tile::kResultVectors];
    await_begun();
#pragma unroll
    for (int i = 0; i < Tile::kResultVectors; ++i) {
        const int place = copier.place(i);
        if (place >= Tile::kRows) continue;
        parts[i] = part_of_warps<Shape>(memory, place, copier.vector);
        if (!ranks.finishes(place)) ranks.give(parts[i], place, copier.vector);
    }
    ranks.await_given();
#pragma unroll
    for (int i = 0; i < Tile::kResultVectors; ++i) {
        const int place = copier.place(i);
        if (place >= Tile::kRows || place >= copier.rows || !ranks.finishes(place)) continue;
        store(place, ranks.all(parts[i], place, copier.vector));
    }
}

}  // namespace atoffer::single
