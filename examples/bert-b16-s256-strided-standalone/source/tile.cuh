// Sparse attention on tensor cores: softmax(scale * Q K^T under a mask) V for one tile of query rows at a time.
//
// A block owns (row tile, head, batch). The mask's plan lists the distinct key columns that any row of the tile
// keeps, in chunks; only those rows of K and V are read, and a bitmap says which of them each query row keeps.
//
//   plan: columns of a chunk        device memory                    shared memory, kStages buffers
//   +----+----+----+----+           K, V rows, W elements each       +-----------+-----------+
//   |  3 | 17 | 40 | -1 | --------> 16-byte cp.async, gathered ----> | K (C x W) | V (C x W) |
//   +----+----+----+----+           (-1: zeros, nothing read)        +-----------+-----------+
//                                                                         |           | ldmatrix.trans
//   Q (16 x W a warp, registers) -- mma --> scores (16 x C, float32)  <---+           |
//                                              | mask bits, running maximum, exp2     |
//                                              v                                      v
//                                           P (16 x C, registers) ----- mma -----> sum (16 x W, float32)
//
// Warps split the tile's rows, 16 each; where there are more warps than that, they also split each chunk's columns,
// and their maxima, totals and sums meet in shared memory at the end.
//
// Rows of K and V lie in shared memory as 16-byte vectors whose position is XORed with bits of the row, so that the
// eight rows that an ldmatrix phase reads fall into distinct banks.
#pragma once

#include "common.cuh"

namespace atoffer {

constexpr int kFragmentRows = 16;    // rows of an mma result, and its depth
constexpr int kFragmentColumns = 8;  // columns of an mma result
constexpr int kWordBits = 32;        // mask bits in a word
constexpr int kVectorBytes = 16;
constexpr int kVectorElements = 8;
constexpr int kQuad = 4;  // lanes that share an mma row

// What the block and its warps cover, derived from the constants of a rendered shape.
template <class Shape>
struct Tiling {
    using Element = typename Shape::Element;
    static constexpr int kSeqLen = Shape::kSeqLen, kHeads = Shape::kHeads, kHeadDim = Shape::kHeadDim;
    static constexpr int kTileRows = Shape::kTileRows, kChunk = Shape::kChunk, kStages = Shape::kStages;

    static constexpr int kThreads = Shape::kWarps * kWarpSize;
    static constexpr int kRowWarps = kTileRows / kFragmentRows;
    static constexpr int kColumnWarps = Shape::kWarps / kRowWarps;
    static constexpr int kWarpColumns = kChunk / kColumnWarps;

    static constexpr int kTiles = (kSeqLen + kTileRows - 1) / kTileRows;
    static constexpr int kWidth = kHeads * kHeadDim;
    static constexpr int kTokenStride = 3 * kWidth;  // elements from one token's q, k, v to the next

    static constexpr int kRowBytes = kHeadDim * 2;
    static constexpr int kRowVectors = kRowBytes / kVectorBytes;
    static constexpr int kMatrixBytes = kChunk * kRowBytes;  // K or V of one chunk
    static constexpr int kStageBytes = 2 * kMatrixBytes;
    static constexpr int kCopyRows = kThreads / kRowVectors;                  // rows that one pass of the block copies
    static constexpr int kCopies = (kChunk + kCopyRows - 1) / kCopyRows;      // rows a thread copies a part of
    static constexpr int kRowWords = (kChunk + kWordBits - 1) / kWordBits;    // mask words of a row and chunk
    static constexpr int kWarpWords = (kWarpColumns + kWordBits - 1) / kWordBits;

    static constexpr int kDepthSteps = kHeadDim / kFragmentRows;            // mma steps over a head's channels
    static constexpr int kScoreTiles = kWarpColumns / kFragmentColumns;     // mma results across a warp's columns
    static constexpr int kSumTiles = kHeadDim / kFragmentColumns;           // mma results across the channels
    static constexpr int kPartialFloats = 4 * kSumTiles + 4;                // a lane's sums, maxima and totals

    static_assert(sizeof(Element) == 2, "tensor cores take 16-bit elements");
    static_assert(kHeadDim == 32 || kHeadDim == 64 || kHeadDim == 128, "the swizzle takes 32, 64 or 128 channels");
    static_assert(kTileRows % kFragmentRows == 0, "a warp covers 16 rows");
    static_assert(Shape::kWarps % kRowWarps == 0, "warps split the rows first, then the columns evenly");
    static_assert(kWarpColumns == kFragmentRows || kWarpColumns % kWordBits == 0, "a warp reads 16 mask bits or whole words");
    static_assert(kThreads % kRowVectors == 0, "a thread copies the same channels of every row");
};

// ---- Pairs: two neighbouring elements in one register, the low half first.

template <class T>
__device__ __forceinline__ unsigned pack_pair(float low, float high) {
    if constexpr (kSame<T, __half>) {
        const __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<const unsigned*>(&pair);
    } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const unsigned*>(&pair);
    }
}

// The pair's elements plus those of `bias`, added in float32 and rounded.
template <class T>
__device__ __forceinline__ unsigned add_pairs(unsigned pair, unsigned bias) {
    const Vector<T, 2> a = *reinterpret_cast<const Vector<T, 2>*>(&pair);
    const Vector<T, 2> b = *reinterpret_cast<const Vector<T, 2>*>(&bias);
    return pack_pair<T>(to_float(a.values[0]) + to_float(b.values[0]), to_float(a.values[1]) + to_float(b.values[1]));
}

__device__ __forceinline__ float exp2_approximate(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// The two results of a lane's rows, combined over the four lanes that share them.
__device__ __forceinline__ void quad_max(float (&rows)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        rows[r] = fmaxf(rows[r], __shfl_xor_sync(kFullWarp, rows[r], 1));
        rows[r] = fmaxf(rows[r], __shfl_xor_sync(kFullWarp, rows[r], 2));
    }
}

__device__ __forceinline__ void quad_sum(float (&rows)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        rows[r] += __shfl_xor_sync(kFullWarp, rows[r], 1);
        rows[r] += __shfl_xor_sync(kFullWarp, rows[r], 2);
    }
}

// Byte offset of 16-byte vector `vector` of row `row` in a matrix of `ROW_VECTORS` vectors a row.
template <int ROW_VECTORS>
__device__ __forceinline__ int swizzled(int row, int vector) {
    constexpr int kBankRow = 128 / kVectorBytes;  // vectors that span all banks
    const int key = ROW_VECTORS >= kBankRow ? row % kBankRow : row / 2 % kQuad;
    return (row * ROW_VECTORS + (vector ^ key)) * kVectorBytes;
}

// ---- Gathering: device memory to shared memory.

// One thread's part in copying chunks: always the same 8 channels, of every kCopyRows-th gathered row.
template <class Shape>
struct Gather {
    using Tile = Tiling<Shape>;
    using Element = typename Shape::Element;
    static constexpr int kPending = Tile::kStages > 1 ? Tile::kStages - 2 : 0;  // groups newer than the one needed

    const Element* keys;  // the thread's channels of this head's first key; values lie kWidth elements further
    const int* columns;
    int first_row;
    int vector;
    int next[Tile::kCopies];  // columns of the chunk to be copied next; -1 where there is none

    __device__ __forceinline__ void start(const Element* head_query, const int* plan_columns) {
        first_row = threadIdx.x / Tile::kRowVectors;
        vector = threadIdx.x % Tile::kRowVectors;
        keys = head_query + Tile::kWidth + vector * kVectorElements;
        columns = plan_columns;
    }

    __device__ __forceinline__ bool covers(int row) const {
        return Tile::kChunk % Tile::kCopyRows == 0 || row < Tile::kChunk;
    }

    __device__ __forceinline__ void fetch_columns(int chunk) {
#pragma unroll
        for (int i = 0; i < Tile::kCopies; ++i) {
            const int row = first_row + i * Tile::kCopyRows;
            next[i] = covers(row) ? columns[chunk * Tile::kChunk + row] : -1;
        }
    }

    // Begins to copy the chunk whose columns were fetched last.
    __device__ __forceinline__ void copy(unsigned stage) const {
#pragma unroll
        for (int i = 0; i < Tile::kCopies; ++i) {
            const int row = first_row + i * Tile::kCopyRows;
            if (!covers(row)) continue;
            const bool valid = next[i] >= 0;
            const Element* key = keys + (valid ? next[i] : 0) * Tile::kTokenStride;
            const unsigned to = stage + swizzled<Tile::kRowVectors>(row, vector);
            copy_async<kVectorBytes>(to, key, valid);
            copy_async<kVectorBytes>(to + Tile::kMatrixBytes, key + Tile::kWidth, valid);
        }
    }

    // Waits for the oldest chunk and adds the bias to what this thread itself copied of it. The bias is read anew for
    // each chunk: it comes from the nearest cache while the copies are on their way, and leaves registers to the sums.
    __device__ __forceinline__ void add_bias(char* stage, const Element* head_bias) const {
        const Element* bias = head_bias + Tile::kWidth + vector * kVectorElements;
        const uint4 key_bias = *reinterpret_cast<const uint4*>(bias);
        const uint4 value_bias = *reinterpret_cast<const uint4*>(bias + Tile::kWidth);
        wait_copies<kPending>();
#pragma unroll
        for (int i = 0; i < Tile::kCopies; ++i) {
            const int row = first_row + i * Tile::kCopyRows;
            if (!covers(row)) continue;
            uint4* key = reinterpret_cast<uint4*>(stage + swizzled<Tile::kRowVectors>(row, vector));
            uint4* value = key + Tile::kMatrixBytes / kVectorBytes;
            *key = biased(*key, key_bias);
            *value = biased(*value, value_bias);
        }
    }

    static __device__ __forceinline__ uint4 biased(uint4 x, uint4 bias) {
        return make_uint4(add_pairs<Element>(x.x, bias.x), add_pairs<Element>(x.y, bias.y),
                          add_pairs<Element>(x.z, bias.z), add_pairs<Element>(x.w, bias.w));
    }
};

// ---- One warp's rows: queries, running softmax and sums in registers.

template <class Shape>
struct WarpTile {
    using Tile = Tiling<Shape>;
    using Element = typename Shape::Element;
    using Words = Vector<unsigned, Tile::kWarpWords>;

    int lane, row_warp, column_warp;
    unsigned query[Tile::kDepthSteps][4];
    float sum[Tile::kSumTiles][4];
    float maximum[2];  // of the scores of rows lane / 4 and lane / 4 + 8, unscaled
    float total[2];    // of their exponentials, this lane's columns only

    __device__ __forceinline__ void start() {
        lane = threadIdx.x % kWarpSize;
        row_warp = threadIdx.x / kWarpSize % Tile::kRowWarps;
        column_warp = threadIdx.x / kWarpSize / Tile::kRowWarps;
#pragma unroll
        for (int n = 0; n < Tile::kSumTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[n][i] = 0.0f;
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            maximum[r] = negative_infinity();
            total[r] = 0.0f;
        }
    }

    // The tile's row of this lane's first (r = 0) or second (r = 1) mma row.
    __device__ __forceinline__ int row(int r) const { return row_warp * kFragmentRows + r * 8 + lane / kQuad; }

    // Rows beyond the sequence are zeros. `head_query` points at the tile's first query of this head.
    __device__ __forceinline__ void load_queries(const Element* head_query, const Element* head_bias, int rows) {
        const int channel = lane % kQuad * 2;
#pragma unroll
        for (int k = 0; k < Tile::kDepthSteps; ++k) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int r = row(i % 2), c = k * kFragmentRows + i / 2 * 8 + channel;
                query[k][i] = 0;
                if (r < rows) {
                    query[k][i] = *reinterpret_cast<const unsigned*>(head_query + r * Tile::kTokenStride + c);
                    if constexpr (Shape::kAddBias) {
                        const unsigned bias = *reinterpret_cast<const unsigned*>(head_bias + c);
                        query[k][i] = add_pairs<Element>(query[k][i], bias);
                    }
                }
            }
        }
    }

    // The mask of this lane's two rows and the warp's columns. Bit 8n + j of a row, counted through its words,
    // says whether column 2 * (lane % 4) + j of the warp's n-th group of 8 is kept (j = 0, 1).
    __device__ __forceinline__ void load_words(Words (&kept)[2], const unsigned* words, int chunk) const {
        const int first = column_warp * Tile::kWarpColumns;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const unsigned* from = words + (chunk * Tile::kTileRows + row(r)) * Tile::kRowWords + first / kWordBits;
            kept[r] = *reinterpret_cast<const Words*>(from);
#pragma unroll
            for (int w = 0; w < Tile::kWarpWords; ++w) {
                if constexpr (Tile::kWarpColumns < kWordBits) {
                    kept[r].values[w] = kept[r].values[w] >> first % kWordBits & ((1u << Tile::kWarpColumns) - 1);
                }
                kept[r].values[w] >>= lane % kQuad * 2;
            }
        }
    }

    // Whether any row of the warp keeps any of its columns.
    static __device__ __forceinline__ bool any_kept(const Words (&kept)[2]) {
        unsigned any = 0;
#pragma unroll
        for (int w = 0; w < Tile::kWarpWords; ++w) any |= kept[0].values[w] | kept[1].values[w];
        return __any_sync(kFullWarp, any != 0);
    }

    // Takes in the chunk whose keys, then values, lie at `stage`.
    __device__ __forceinline__ void attend(unsigned stage, const Words (&kept)[2]) {
        float scores[Tile::kScoreTiles][4];
        multiply_keys(scores, stage);
        mask_scores(scores, kept);
        unsigned probabilities[Tile::kScoreTiles / 2][4];
        update_softmax(probabilities, scores);
        multiply_values(probabilities, stage + Tile::kMatrixBytes);
    }

    __device__ __forceinline__ void multiply_keys(float (&scores)[Tile::kScoreTiles][4], unsigned keys) const {
#pragma unroll
        for (int n = 0; n < Tile::kScoreTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
        }
        // Lane groups of 8 address: columns 0-7 low channels, columns 0-7 high, columns 8-15 low, columns 8-15 high.
        const int column = column_warp * Tile::kWarpColumns + lane / 16 * 8 + lane % 8;
        const int half = lane / 8 % 2;
#pragma unroll
        for (int k = 0; k < Tile::kDepthSteps; ++k) {
            const unsigned from = keys + swizzled<Tile::kRowVectors>(column, 2 * k + half);
#pragma unroll
            for (int n = 0; n < Tile::kScoreTiles / 2; ++n) {
                unsigned key[4];
                load_matrices(key, from + n * kFragmentRows * Tile::kRowBytes);
                multiply_add<Element>(scores[2 * n], query[k], key[0], key[1]);
                multiply_add<Element>(scores[2 * n + 1], query[k], key[2], key[3]);
            }
        }
    }

    static __device__ __forceinline__ void mask_scores(float (&scores)[Tile::kScoreTiles][4], const Words (&kept)[2]) {
#pragma unroll
        for (int n = 0; n < Tile::kScoreTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int bit = n * kFragmentColumns + i % 2;
                const unsigned keep = kept[i / 2].values[bit / kWordBits] & 1u << bit % kWordBits;
                scores[n][i] = keep ? scores[n][i] : negative_infinity();
            }
        }
    }

    // Scores become unnormalised probabilities; total and sum are brought to the new maximum.
    __device__ __forceinline__ void update_softmax(unsigned (&probabilities)[Tile::kScoreTiles / 2][4],
                                                   const float (&scores)[Tile::kScoreTiles][4]) {
        float highest[2] = {maximum[0], maximum[1]};
#pragma unroll
        for (int n = 0; n < Tile::kScoreTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) highest[i / 2] = fmaxf(highest[i / 2], scores[n][i]);
        }
        quad_max(highest);
        float base[2];
        rescale(highest, base);
#pragma unroll
        for (int n = 0; n < Tile::kScoreTiles; ++n) {
            float p[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                p[i] = exp2_approximate(fmaf(scores[n][i], Shape::kScaleLog2, -base[i / 2]));
                total[i / 2] += p[i];
            }
            probabilities[n / 2][n % 2 * 2] = pack_pair<Element>(p[0], p[1]);
            probabilities[n / 2][n % 2 * 2 + 1] = pack_pair<Element>(p[2], p[3]);
        }
    }

    // Replaces the maxima; `base` receives what to subtract from scaled scores (0 while nothing is kept).
    __device__ __forceinline__ void rescale(const float (&highest)[2], float (&base)[2]) {
        float factor[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            base[r] = highest[r] == negative_infinity() ? 0.0f : highest[r] * Shape::kScaleLog2;
            factor[r] = exp2_approximate(fmaf(maximum[r], Shape::kScaleLog2, -base[r]));
            maximum[r] = highest[r];
            total[r] *= factor[r];
        }
#pragma unroll
        for (int n = 0; n < Tile::kSumTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[n][i] *= factor[i / 2];
        }
    }

    __device__ __forceinline__ void multiply_values(const unsigned (&probabilities)[Tile::kScoreTiles / 2][4],
                                                    unsigned values) {
        // Lane groups of 8 address: columns 0-7 low channels, columns 8-15 low, columns 0-7 high, columns 8-15 high.
        const int column = column_warp * Tile::kWarpColumns + lane / 8 % 2 * 8 + lane % 8;
        const int half = lane / 16;
#pragma unroll
        for (int n = 0; n < Tile::kSumTiles / 2; ++n) {
            const unsigned from = values + swizzled<Tile::kRowVectors>(column, 2 * n + half);
#pragma unroll
            for (int k = 0; k < Tile::kScoreTiles / 2; ++k) {
                unsigned value[4];
                load_matrices_transposed(value, from + k * kFragmentRows * Tile::kRowBytes);
                multiply_add<Element>(sum[2 * n], probabilities[k], value[0], value[1]);
                multiply_add<Element>(sum[2 * n + 1], probabilities[k], value[2], value[3]);
            }
        }
    }

    // A lane's partial results of column warp `from` (1 and up) lie kWarpSize floats apart.
    __device__ __forceinline__ float* partial(float* partials, int from) const {
        return partials + ((from - 1) * Tile::kRowWarps + row_warp) * Tile::kPartialFloats * kWarpSize + lane;
    }

    // Brings what the column warps found into column warp 0. Every thread of the block calls it.
    __device__ __forceinline__ void merge_columns(float* partials) {
        if (column_warp > 0) {
            float* to = partial(partials, column_warp);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                to[r * kWarpSize] = maximum[r];
                to[(2 + r) * kWarpSize] = total[r];
            }
#pragma unroll
            for (int n = 0; n < Tile::kSumTiles; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) to[(4 + 4 * n + i) * kWarpSize] = sum[n][i];
            }
        }
        __syncthreads();
        if (column_warp == 0) {
#pragma unroll
            for (int from = 1; from < Tile::kColumnWarps; ++from) add_partial(partial(partials, from));
        }
    }

    __device__ __forceinline__ void add_partial(const float* other) {
        float highest[2], base[2], factor[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) highest[r] = fmaxf(maximum[r], other[r * kWarpSize]);
        rescale(highest, base);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            factor[r] = exp2_approximate(fmaf(other[r * kWarpSize], Shape::kScaleLog2, -base[r]));
            total[r] += factor[r] * other[(2 + r) * kWarpSize];
        }
#pragma unroll
        for (int n = 0; n < Tile::kSumTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[n][i] += factor[i / 2] * other[(4 + 4 * n + i) * kWarpSize];
        }
    }

    // Divides by the totals and writes whole 16-byte vectors by way of `staging` (16 rows of the warp's own).
    // A row that keeps nothing has a total of 0 and becomes zeros, whatever its sum is.
    __device__ __forceinline__ void store(Element* result, int result_stride, int rows, char* staging) {
        quad_sum(total);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const bool empty = total[r] == 0.0f;
            const float factor = 1.0f / total[r];
#pragma unroll
            for (int n = 0; n < Tile::kSumTiles; ++n) {
                const float low = empty ? 0.0f : sum[n][2 * r] * factor;
                const float high = empty ? 0.0f : sum[n][2 * r + 1] * factor;
                const int at = swizzled<Tile::kRowVectors>(r * 8 + lane / kQuad, n) + lane % kQuad * 4;
                *reinterpret_cast<unsigned*>(staging + at) = pack_pair<Element>(low, high);
            }
        }
        __syncwarp();
#pragma unroll
        for (int i = lane; i < kFragmentRows * Tile::kRowVectors; i += kWarpSize) {
            const int row = i / Tile::kRowVectors, vector = i % Tile::kRowVectors;
            if (row_warp * kFragmentRows + row < rows) {
                Element* to = result + (row_warp * kFragmentRows + row) * result_stride + vector * kVectorElements;
                *reinterpret_cast<uint4*>(to) =
                    *reinterpret_cast<const uint4*>(staging + swizzled<Tile::kRowVectors>(row, vector));
            }
        }
    }
};

// ---- The block.

// Computes one (row tile, head, batch); `blockIdx.x` numbers them, the last tile of a head first, because causal
// masks give it the most work.
//
// qkv: (batch, seq_len, 3, heads, head_dim). bias: (3, heads, head_dim), read if kAddBias.
// starts, columns, words: the tile plan. Chunk 0 of tile t of mask m is chunk m * kTiles + t, so that no load has to
// wait for `starts`; its further chunks are starts[m, t] to starts[m, t + 1].
// result: (batch, seq_len, heads, head_dim) if kMerged, else (batch, heads, seq_len, head_dim).
template <class Shape>
__device__ __forceinline__ void tile_attention(const typename Shape::Element* qkv, const typename Shape::Element* bias,
                                               const int* starts, const int* columns, const unsigned* words,
                                               typename Shape::Element* result) {
    using Tile = Tiling<Shape>;
    extern __shared__ __align__(128) char shared[];

    const int tile = Tile::kTiles - 1 - static_cast<int>(blockIdx.x) % Tile::kTiles;
    const int head = blockIdx.x / Tile::kTiles % Tile::kHeads;
    const int batch = blockIdx.x / (Tile::kTiles * Tile::kHeads);
    const int mask = Shape::kMaskBatches == 1 ? 0 : batch;
    const int first_row = tile * Tile::kTileRows, rows = Tile::kSeqLen - first_row;
    const typename Shape::Element* head_qkv = qkv + batch * Tile::kSeqLen * Tile::kTokenStride + head * Tile::kHeadDim;
    const typename Shape::Element* head_bias = bias + head * Tile::kHeadDim;

    Gather<Shape> gather;
    gather.start(head_qkv, columns);
    const int first_chunk = mask * Tile::kTiles + tile;
    gather.fetch_columns(first_chunk);
    const int* span = starts + mask * (Tile::kTiles + 1) + tile;
    const int more = span[0] - 1;  // chunk i > 0 of the tile is chunk more + i of the plan
    const int chunks = span[1] - more;

    const unsigned stages = shared_address(shared);
    const auto copy_chunk = [&](int chunk, int stage) {
        if (chunk < chunks) gather.copy(stages + stage * Tile::kStageBytes);
        if (chunk + 1 < chunks) gather.fetch_columns(more + chunk + 1);
        commit_copies();
    };
#pragma unroll
    for (int ahead = 0; ahead < Tile::kStages - 1; ++ahead) copy_chunk(ahead, ahead);

    WarpTile<Shape> warp;
    typename WarpTile<Shape>::Words kept[2];
    warp.start();
    warp.load_words(kept, words, first_chunk);
    warp.load_queries(head_qkv + first_row * Tile::kTokenStride, head_bias, rows);

    int stage = 0, free_stage = Tile::kStages - 1;
    for (int chunk = 0; chunk < chunks; ++chunk) {
        if constexpr (Tile::kStages == 1) {
            __syncthreads();  // the chunk before has been used
            copy_chunk(chunk, 0);
        }
        if constexpr (Shape::kAddBias) {
            gather.add_bias(shared + stage * Tile::kStageBytes, head_bias);
        } else {
            wait_copies<Gather<Shape>::kPending>();
        }
        __syncthreads();  // this chunk has arrived for all threads, and all have used the one before
        if constexpr (Tile::kStages > 1) {
            copy_chunk(chunk + Tile::kStages - 1, free_stage);
            free_stage = stage;
        }
        typename WarpTile<Shape>::Words next[2] = {kept[0], kept[1]};
        if (chunk + 1 < chunks) warp.load_words(next, words, more + chunk + 1);
        if (WarpTile<Shape>::any_kept(kept)) warp.attend(stages + stage * Tile::kStageBytes, kept);
        kept[0] = next[0];
        kept[1] = next[1];
        stage = stage + 1 == Tile::kStages ? 0 : stage + 1;
    }
    __syncthreads();  // the stages become staging and partial results

    constexpr int kStagingBytes = Tile::kTileRows * Tile::kRowBytes;
    if constexpr (Tile::kColumnWarps > 1) warp.merge_columns(reinterpret_cast<float*>(shared + kStagingBytes));
    if (warp.column_warp > 0) return;
    constexpr int kResultStride = Shape::kMerged ? Tile::kWidth : Tile::kHeadDim;
    const int first = Shape::kMerged ? (batch * Tile::kSeqLen + first_row) * Tile::kWidth + head * Tile::kHeadDim
                                     : ((batch * Tile::kHeads + head) * Tile::kSeqLen + first_row) * Tile::kHeadDim;
    warp.store(result + first, kResultStride, rows, shared + warp.row_warp * kFragmentRows * Tile::kRowBytes);
}

}  // namespace atoffer
