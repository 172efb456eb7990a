// C[M, N] = epilogue(prologue(A)[M, K] * W[N, K]^T), accumulated in float32.
//
//              K                      A block computes one TILE_M x TILE_N tile of C. Its warps form a grid of
//        +---+---+---+ W              WARPS_M x WARPS_N, each computing kWarpM x kWarpN of the tile; WARPS_K such
//        |   |TK |   | TILE_N         grids share the inner dimension, and so do the SPLIT_K blocks of a cluster:
//        +---+---+---+                the epilogue adds their sums.
//          K
//     +---+---+---+  +--------+       global --cp.async--> ring of STAGES stages in shared memory, TILE_K columns of
//   A |   |TK |   |  | w0  w1 |       A and W each --ldmatrix--> registers --mma--> float32 sums in registers
//     |   |   |   |  |        | C     prologue: a thread rewrites the pieces it copied itself, before the barrier
//     +---+---+---+  | w2  w3 |       epilogue: strips of 16 rows pass through shared memory as float32, so that
//   TILE_M           +--------+       global loads (bias, residual) and stores move 16 bytes a thread
//
// 16-bit elements multiply on tensor cores (mma.m16n8k16), float32 on CUDA cores. Copies are 16 bytes wide where the
// innermost extent allows it, else 8, 4 or one element; what lies outside a matrix is never read and counts as zero, for
// the prologue, too: what that makes of rows beyond the last nobody stores.
#pragma once

#include "cluster.cuh"

namespace atoffer::gemm {

constexpr int kChunkBytes = 16;    // unit of the swizzle and widest copy
constexpr int kLineChunks = 8;     // chunks in the 128 bytes that shared memory serves at once
constexpr int kStripRows = 16;     // rows that the epilogue passes through shared memory at a time
constexpr int kScratchPadding = 8; // floats after each row of a strip, so that lanes write to different banks
constexpr int kMmaN = 8;           // mma.m16n8k16
constexpr int kMmaK = 16;
constexpr int kLaneRows = 8;       // float32: the lanes of a warp form a grid of 8 x 4 rows and columns
constexpr int kLaneColumns = 4;

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Widest power of two up to `limit` that divides `extent`.
__host__ __device__ constexpr int widest_vector(int extent, int limit) {
    return extent % limit == 0 ? limit : widest_vector(extent, limit / 2);
}

template <class T>
constexpr int kChunkElements = kChunkBytes / static_cast<int>(sizeof(T));

template <class T, int TILE_M, int TILE_N, int TILE_K, int WARPS_M, int WARPS_N, int WARPS_K, int STAGES, int SPLIT_K>
struct Tiling {
    using Element = T;
    static constexpr int kTileM = TILE_M, kTileN = TILE_N, kTileK = TILE_K;
    static constexpr int kWarpsM = WARPS_M, kWarpsN = WARPS_N, kWarpsK = WARPS_K;
    static constexpr int kStages = STAGES, kSplitK = SPLIT_K;
    static constexpr int kWarpM = TILE_M / WARPS_M, kWarpN = TILE_N / WARPS_N;
    static constexpr int kThreads = WARPS_M * WARPS_N * WARPS_K * kWarpSize;
    static constexpr int kBytesA = TILE_M * TILE_K * static_cast<int>(sizeof(T));
    static constexpr int kBytesW = TILE_N * TILE_K * static_cast<int>(sizeof(T));
    static constexpr int kStrips = kWarpM / kStripRows;
    static constexpr int kStripsAtOnce = SPLIT_K == 1 ? 1 : kStrips;  // a cluster's barrier is worth waiting for once
    static constexpr int kScratchStride = kWarpN + kScratchPadding;
    static constexpr int kScratchFloats = kStripsAtOnce * kStripRows * kScratchStride;
    static constexpr int kRingBytes = STAGES * (kBytesA + kBytesW);
    static constexpr int kScratchBytes = kThreads / kWarpSize * kScratchFloats * static_cast<int>(sizeof(float));
    static constexpr int kSharedBytes = kRingBytes > kScratchBytes ? kRingBytes : kScratchBytes;  // not at the same time
    static_assert(kWarpM % 16 == 0 && kWarpM * WARPS_M == TILE_M, "warps_m must divide tile_m into multiples of 16");
    static_assert(kWarpN % 16 == 0 && kWarpN * WARPS_N == TILE_N, "warps_n must divide tile_n into multiples of 16");
    static_assert(TILE_K % (kMmaK * WARPS_K) == 0, "warps_k must divide tile_k into multiples of 16");
    static_assert((TILE_K & (TILE_K - 1)) == 0 && (WARPS_K & (WARPS_K - 1)) == 0, "the swizzle needs powers of two");
    static_assert(STAGES >= 2, "copies overlap products only with two stages or more");
    static_assert(SPLIT_K >= 1 && SPLIT_K <= 8, "a cluster has at most 8 blocks");
};

// ---- Where operands lie in global memory: an element's address is base + row_offset(row) + column_offset(column).

template <class T, int ROWS, int COLUMNS>
struct RowMajor {
    static constexpr int kRows = ROWS, kColumns = COLUMNS;
    static constexpr int kVector = widest_vector(COLUMNS, kChunkElements<T>);
    const T* __restrict__ base;
    static __device__ __forceinline__ size_t row_offset(int row) { return static_cast<size_t>(row) * COLUMNS; }
    static __device__ __forceinline__ int column_offset(int column) { return column; }
};

// (BATCH, HEADS, SEQ_LEN, HEAD_DIM) read as (BATCH * SEQ_LEN, HEADS * HEAD_DIM): operator 6 is only an address.
template <class T, int BATCH, int HEADS, int SEQ_LEN, int HEAD_DIM>
struct MergedHeads {
    static constexpr int kRows = BATCH * SEQ_LEN, kColumns = HEADS * HEAD_DIM;
    static constexpr int kVector = widest_vector(HEAD_DIM, kChunkElements<T>);
    const T* __restrict__ base;
    static __device__ __forceinline__ size_t row_offset(int row) {
        return static_cast<size_t>(row / SEQ_LEN) * (HEADS * SEQ_LEN * HEAD_DIM) + row % SEQ_LEN * HEAD_DIM;
    }
    static __device__ __forceinline__ int column_offset(int column) {
        return column / HEAD_DIM * (SEQ_LEN * HEAD_DIM) + column % HEAD_DIM;
    }
};

// ---- A tile in shared memory: rows of 16-byte chunks, exclusive-ored so that 8 consecutive rows of one chunk
// column lie in 8 different groups of banks.
//
//   TILE_K = 64, 16 bit   row 0: 0 1 2 3 4 5 6 7      TILE_K = 32   rows 0, 1: 0 1 2 3 | 0 1 2 3
//                         row 1: 1 0 3 2 5 4 7 6                    rows 2, 3: 1 0 3 2 | 1 0 3 2
template <class T, int TILE_K>
__device__ __forceinline__ int chunk_offset(int row, int chunk) {
    constexpr int kChunks = TILE_K / kChunkElements<T>;
    constexpr int kLineRows = kChunks < kLineChunks ? kLineChunks / kChunks : 1;
    constexpr int kSwizzled = kChunks < kLineChunks ? kChunks : kLineChunks;
    return (row * kChunks + (chunk ^ (row / kLineRows % kSwizzled))) * kChunkBytes;
}

// Copies tiles of TILE_ROWS x TILE_K from `Source`. Piece p, kVector elements wide, belongs to thread p % THREADS.
template <class T, class Source, int TILE_ROWS, int TILE_K, int THREADS>
class TileCopy {
    static constexpr int kVector = Source::kVector;
    static constexpr int kRowPieces = TILE_K / kVector;
    static constexpr int kPieces = TILE_ROWS * kRowPieces;
    static constexpr int kThreadPieces = ceil_div(kPieces, THREADS);
    static constexpr bool kWholeRows = Source::kRows % TILE_ROWS == 0;
    static constexpr bool kWholeColumns = Source::kColumns % TILE_K == 0;

    Source source_;
    int first_row_;

    static __device__ __forceinline__ int piece(int i) { return static_cast<int>(threadIdx.x) + i * THREADS; }
    static __device__ __forceinline__ bool exists(int i) { return kPieces % THREADS == 0 || piece(i) < kPieces; }
    static __device__ __forceinline__ int row(int i) {
        if constexpr (THREADS % kRowPieces != 0) return piece(i) / kRowPieces;
        return static_cast<int>(threadIdx.x) / kRowPieces + i * (THREADS / kRowPieces);  // constant steps
    }
    static __device__ __forceinline__ int column(int i) {
        return (THREADS % kRowPieces == 0 ? static_cast<int>(threadIdx.x) : piece(i)) % kRowPieces * kVector;
    }
    static __device__ __forceinline__ T* place(char* tile, int i) {
        const int chunk = column(i) / kChunkElements<T>;
        return reinterpret_cast<T*>(tile + chunk_offset<T, TILE_K>(row(i), chunk)) + column(i) % kChunkElements<T>;
    }

public:
    __device__ __forceinline__ TileCopy(Source source, int first_row) : source_(source), first_row_(first_row) {}

    // Starts to copy columns `first_column` and on; the caller closes the group.
    __device__ __forceinline__ void start(char* tile, int first_column) const {
#pragma unroll
        for (int i = 0; i < kThreadPieces; ++i) {
            if (!exists(i)) break;
            const int from_row = first_row_ + row(i);
            const int from_column = first_column + column(i);
            const bool valid =
                (kWholeRows || from_row < Source::kRows) && (kWholeColumns || from_column < Source::kColumns);
            const T* from = source_.base;
            if (valid) from += Source::row_offset(from_row) + Source::column_offset(from_column);
            if constexpr (kVector * sizeof(T) >= 4) {
                copy_async<kVector * sizeof(T)>(shared_address(place(tile, i)), from, valid);
            } else {
                *place(tile, i) = valid ? *from : from_float<T>(0.0f);
            }
        }
    }

    // Rewrites the pieces that this thread copied, which must have arrived, as `prologue` says.
    template <class Prologue>
    __device__ __forceinline__ void rewrite(char* tile, int first_column, const Prologue& prologue) const {
#pragma unroll 1
        for (int i = 0; i < kThreadPieces; ++i) {
            if (!exists(i)) break;
            const int from_column = first_column + column(i);
            if (!kWholeColumns && from_column >= Source::kColumns) continue;
            float values[kVector];
            load_floats<T, kVector>(values, place(tile, i));
            prologue(values, from_column);
            store_floats<T, kVector>(place(tile, i), values);
        }
    }
};

// ---- Prologues and the parts of epilogues, on V consecutive elements of a row.

struct NoPrologue {};

template <class T, int V>
__device__ __forceinline__ void add(float (&values)[V], const T* from) {
    float addend[V];
    load_floats<T, V>(addend, from);
#pragma unroll
    for (int i = 0; i < V; ++i) values[i] += addend[i];
}

template <class Activation, int V>
__device__ __forceinline__ void activate(float (&values)[V]) {
#pragma unroll
    for (int i = 0; i < V; ++i) values[i] = Activation::apply(values[i]);
}

// ---- What one warp computes: kWarpM x kWarpN sums in registers. For each stage in turn the kernel calls `most`, waits
// for the next stage, and calls `last` with it; `first` comes before all of them.

// Tensor cores. A step multiplies 16 columns of A and W, while the next step's fragments load: those of a stage's first
// step load during the last step of the stage before.
template <class Tiling>
class TensorCoreProduct {
    using T = typename Tiling::Element;
    static constexpr int kFragmentsM = Tiling::kWarpM / kStripRows;   // 16 x 16 of A
    static constexpr int kFragmentsN = Tiling::kWarpN / (2 * kMmaN);  // two 8 x 16 of W
    static constexpr int kSteps = Tiling::kTileK / kMmaK / Tiling::kWarpsK;
    static constexpr int kStepBytes = kMmaK * static_cast<int>(sizeof(T));
    static constexpr int kFragmentBytes = kStripRows * Tiling::kTileK * static_cast<int>(sizeof(T));

    struct Fragments {
        unsigned a[kFragmentsM][4];
        unsigned w[kFragmentsN][4];
    };

    float sums_[kFragmentsM][2 * kFragmentsN][4] = {};
    Fragments fragments_[2];
    // Where this lane's matrix row lies in step 0. The swizzle repeats every 16 rows, so other fragments of a step lie
    // at constant distances; other steps differ in bits of the chunk only, which exclusive or flips.
    int offset_a_, offset_w_;

    __device__ __forceinline__ void load(int step, const char* tile_a, const char* tile_w, int into) {
        const unsigned a = shared_address(tile_a) + (offset_a_ ^ (step * kStepBytes));
        const unsigned w = shared_address(tile_w) + (offset_w_ ^ (step * kStepBytes));
#pragma unroll
        for (int i = 0; i < kFragmentsM; ++i) load_matrices(fragments_[into].a[i], a + i * kFragmentBytes);
#pragma unroll
        for (int j = 0; j < kFragmentsN; ++j) load_matrices(fragments_[into].w[j], w + j * kFragmentBytes);
    }

    __device__ __forceinline__ void multiply(const Fragments& now) {
#pragma unroll
        for (int i = 0; i < kFragmentsM; ++i)
#pragma unroll
            for (int j = 0; j < 2 * kFragmentsN; ++j)
                multiply_add<T>(sums_[i][j], now.a[i], now.w[j / 2][j % 2 * 2], now.w[j / 2][j % 2 * 2 + 1]);
    }

public:
    // Matrices of A: rows 0-7, then 8-15, of the low half of a step's columns, then of the high half.
    // Matrices of W: low, then high half of a step's columns, of rows 0-7, then of rows 8-15.
    __device__ __forceinline__ TensorCoreProduct(int lane, int row, int column, int warp_k) {
        const int chunk = warp_k * kSteps * (kStepBytes / kChunkBytes);
        offset_a_ = chunk_offset<T, Tiling::kTileK>(row + lane % 16, chunk + lane / 16);
        offset_w_ = chunk_offset<T, Tiling::kTileK>(column + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2);
    }

    __device__ __forceinline__ void first(const char* tile_a, const char* tile_w) { load(0, tile_a, tile_w, 0); }

    __device__ __forceinline__ void most(const char* tile_a, const char* tile_w) {
#pragma unroll
        for (int step = 0; step < kSteps - 1; ++step) {
            load(step + 1, tile_a, tile_w, (step + 1) % 2);
            multiply(fragments_[step % 2]);
        }
    }

    __device__ __forceinline__ void last(const char* next_a, const char* next_w) {
        load(0, next_a, next_w, kSteps % 2);
        multiply(fragments_[(kSteps - 1) % 2]);
        if constexpr (kSteps % 2 == 1) fragments_[0] = fragments_[1];
    }

    // Writes the sums of rows 16 * strip to 16 * strip + 15.
    __device__ __forceinline__ void write_strip(float* scratch, int strip) const {
        const int lane = threadIdx.x % kWarpSize;
#pragma unroll
        for (int j = 0; j < 2 * kFragmentsN; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float* to = scratch + (lane / 4 + half * 8) * Tiling::kScratchStride + j * kMmaN + lane % 4 * 2;
                *reinterpret_cast<float2*>(to) = make_float2(sums_[strip][j][2 * half], sums_[strip][j][2 * half + 1]);
            }
    }
};

// CUDA cores. Four products are summed before they join a tile's sum, and a tile's before it joins the total: few
// roundings at the total's size, so that long inner dimensions stay within float32's error budget.
template <class Tiling>
class CudaCoreProduct {
    static constexpr int kRows = Tiling::kWarpM / kLaneRows;
    static constexpr int kColumns = Tiling::kWarpN / kLaneColumns;
    static constexpr int kChunks = Tiling::kTileK / kChunkElements<float> / Tiling::kWarpsK;

    float sums_[kRows][kColumns] = {};
    int row_, column_, first_chunk_;

    static __device__ __forceinline__ float4 chunk_at(const char* tile, int row, int chunk) {
        return *reinterpret_cast<const float4*>(tile + chunk_offset<float, Tiling::kTileK>(row, chunk));
    }

public:
    __device__ __forceinline__ CudaCoreProduct(int lane, int row, int column, int warp_k)
        : row_(row + lane / kLaneColumns), column_(column + lane % kLaneColumns), first_chunk_(warp_k * kChunks) {}

    __device__ __forceinline__ void first(const char*, const char*) {}

    __device__ __forceinline__ void most(const char* tile_a, const char* tile_w) {
        float tile_sums[kRows][kColumns] = {};
#pragma unroll 2
        for (int chunk = first_chunk_; chunk < first_chunk_ + kChunks; ++chunk) {
            float4 a[kRows];
#pragma unroll
            for (int i = 0; i < kRows; ++i) a[i] = chunk_at(tile_a, row_ + i * kLaneRows, chunk);
#pragma unroll
            for (int j = 0; j < kColumns; ++j) {
                const float4 w = chunk_at(tile_w, column_ + j * kLaneColumns, chunk);
#pragma unroll
                for (int i = 0; i < kRows; ++i)
                    tile_sums[i][j] += fmaf(a[i].w, w.w, fmaf(a[i].z, w.z, fmaf(a[i].y, w.y, a[i].x * w.x)));
            }
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i)
#pragma unroll
            for (int j = 0; j < kColumns; ++j) sums_[i][j] += tile_sums[i][j];
    }

    __device__ __forceinline__ void last(const char*, const char*) {}

    __device__ __forceinline__ void write_strip(float* scratch, int strip) const {
        constexpr int kStripParts = kStripRows / kLaneRows;
        const int row = threadIdx.x % kWarpSize / kLaneColumns, column = threadIdx.x % kLaneColumns;
#pragma unroll
        for (int part = 0; part < kStripParts; ++part)
#pragma unroll
            for (int j = 0; j < kColumns; ++j)
                scratch[(row + part * kLaneRows) * Tiling::kScratchStride + column + j * kLaneColumns] =
                    sums_[strip * kStripParts + part][j];
    }
};

template <class Tiling, bool FLOAT32 = kSame<typename Tiling::Element, float>>
struct ProductOf {
    using Type = TensorCoreProduct<Tiling>;
};
template <class Tiling>
struct ProductOf<Tiling, true> {
    using Type = CudaCoreProduct<Tiling>;
};

// ---- The kernel.

// Fills `product` with this block's sums over tiles `first_tile` to `end_tile` of the inner dimension.
template <class Tiling, class SourceA, class SourceW, class Prologue, class Product>
__device__ __forceinline__ void multiply_tiles(Product& product, char* shared, SourceA source_a, SourceW source_w,
                                               int first_row, int first_column, int first_tile, int end_tile,
                                               const Prologue& prologue) {
    using T = typename Tiling::Element;
    constexpr int kStages = Tiling::kStages;
    constexpr int kStageBytes = Tiling::kBytesA + Tiling::kBytesW;
    const TileCopy<T, SourceA, Tiling::kTileM, Tiling::kTileK, Tiling::kThreads> copy_a(source_a, first_row);
    const TileCopy<T, SourceW, Tiling::kTileN, Tiling::kTileK, Tiling::kThreads> copy_w(source_w, first_column);

    const auto tile_a = [&](int stage) { return shared + stage * kStageBytes; };
    const auto tile_w = [&](int stage) { return shared + stage * kStageBytes + Tiling::kBytesA; };
    const auto start = [&](int tile, int stage) {
        if (tile < end_tile) {
            copy_a.start(tile_a(stage), tile * Tiling::kTileK);
            copy_w.start(tile_w(stage), tile * Tiling::kTileK);
        }
        commit_copies();  // also where nothing was copied: waiting counts groups
    };
    const auto await = [&](int tile, int stage) {
        wait_copies<kStages - 2>();
        if constexpr (!kSame<Prologue, NoPrologue>)
            if (tile < end_tile) copy_a.rewrite(tile_a(stage), tile * Tiling::kTileK, prologue);
        __syncthreads();  // this tile is complete, and no warp reads the one before it any more
    };
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) start(first_tile + stage, stage);
    await(first_tile, 0);
    product.first(tile_a(0), tile_w(0));

    asm volatile("" : "+r"(end_tile));  // a known number of tiles is unrolled, whatever the pragma says
    int stage = 0, free_stage = kStages - 1;
#pragma unroll 1
    for (int tile = first_tile; tile < end_tile; ++tile) {
        start(tile + kStages - 1, free_stage);
        product.most(tile_a(stage), tile_w(stage));
        free_stage = stage;
        stage = stage + 1 == kStages ? 0 : stage + 1;
        await(tile + 1, stage);
        product.last(tile_a(stage), tile_w(stage));
    }
    wait_copies<0>();
    __syncthreads();
}

// values += what the WARPS_K warps of the SPLIT_K blocks that share a part of the tile wrote to their scratch.
template <class Tiling, int V>
__device__ __forceinline__ void add_scratch(float (&values)[V], const float* from) {
    constexpr int kWidth = V < 4 ? V : 4;
#pragma unroll
    for (int rank = 0; rank < Tiling::kSplitK; ++rank)
#pragma unroll
        for (int warp_k = 0; warp_k < Tiling::kWarpsK; ++warp_k)
#pragma unroll
            for (int first = 0; first < V; first += kWidth) {
                const float* place = from + warp_k * Tiling::kScratchFloats + first;
                float part[kWidth];
                if constexpr (Tiling::kSplitK == 1) load_floats<float, kWidth>(part, place);
                else load_remote<kWidth>(part, place, rank);
#pragma unroll
                for (int i = 0; i < kWidth; ++i) values[first + i] += part[i];
            }
}

template <class Tiling>
__device__ __forceinline__ void synchronise_scratch() {
    if constexpr (Tiling::kSplitK > 1) synchronise_cluster();
    else if constexpr (Tiling::kWarpsK > 1) __syncthreads();
    else __syncwarp();
}

// Computes one tile of the result; blocks count tiles along its rows, and SPLIT_K blocks in a row share one.
template <class Tiling, class SourceA, class SourceW, class Prologue, class Epilogue>
__device__ __forceinline__ void compute_tile(SourceA source_a, SourceW source_w, const Prologue& prologue,
                                             const Epilogue& epilogue, typename Tiling::Element* __restrict__ result) {
    using T = typename Tiling::Element;
    static_assert(SourceA::kColumns == SourceW::kColumns, "both operands share the inner dimension");
    constexpr int kRows = SourceA::kRows, kColumns = SourceW::kRows;
    constexpr bool kWholeTiles = kRows % Tiling::kTileM == 0 && kColumns % Tiling::kTileN == 0;
    constexpr int kTilesN = ceil_div(kColumns, Tiling::kTileN);
    constexpr int kTilesK = ceil_div(SourceA::kColumns, Tiling::kTileK);
    constexpr int kWarpsMN = Tiling::kWarpsM * Tiling::kWarpsN;
    constexpr int kVector = widest_vector(kColumns, kChunkElements<T>);
    constexpr int kRowPieces = Tiling::kWarpN / kVector;
    constexpr int kPieces = Tiling::kStripsAtOnce * kStripRows * kRowPieces;
    constexpr int kSharers = Tiling::kSplitK * Tiling::kWarpsK * kWarpSize;  // lanes that share the pieces
    extern __shared__ __align__(128) char shared[];

    const int rank = blockIdx.x % Tiling::kSplitK, tile = blockIdx.x / Tiling::kSplitK;
    const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
    const int warp_k = warp / kWarpsMN, warp_mn = warp % kWarpsMN;
    const int warp_row = warp_mn / Tiling::kWarpsN * Tiling::kWarpM;
    const int warp_column = warp_mn % Tiling::kWarpsN * Tiling::kWarpN;
    const int first_row = tile / kTilesN * Tiling::kTileM, first_column = tile % kTilesN * Tiling::kTileN;

    typename ProductOf<Tiling>::Type product(lane, warp_row, warp_column, warp_k);
    multiply_tiles<Tiling>(product, shared, source_a, source_w, first_row, first_column,
                           kTilesK * rank / Tiling::kSplitK, kTilesK * (rank + 1) / Tiling::kSplitK, prologue);

    // Scratch of the warps that share a part of the tile, one for each warp_k, lies side by side.
    float* group = reinterpret_cast<float*>(shared) + warp_mn * Tiling::kWarpsK * Tiling::kScratchFloats;
    float* own = group + warp_k * Tiling::kScratchFloats;
#pragma unroll
    for (int first_strip = 0; first_strip < Tiling::kStrips; first_strip += Tiling::kStripsAtOnce) {
#pragma unroll
        for (int strip = 0; strip < Tiling::kStripsAtOnce; ++strip)
            product.write_strip(own + strip * kStripRows * Tiling::kScratchStride, first_strip + strip);
        synchronise_scratch<Tiling>();
#pragma unroll
        for (int piece = (rank * Tiling::kWarpsK + warp_k) * kWarpSize + lane; piece < kPieces; piece += kSharers) {
            const int scratch_row = piece / kRowPieces, scratch_column = piece % kRowPieces * kVector;
            const int row = first_row + warp_row + first_strip * kStripRows + scratch_row;
            const int column = first_column + warp_column + scratch_column;
            if (!kWholeTiles && (row >= kRows || column >= kColumns)) continue;
            float values[kVector] = {};
            add_scratch<Tiling>(values, group + scratch_row * Tiling::kScratchStride + scratch_column);
            epilogue(values, row, column);
            store_floats<T, kVector>(result + static_cast<size_t>(row) * kColumns + column, values);
        }
        synchronise_scratch<Tiling>();  // before it is written again, or its block ends
    }
}

}  // namespace atoffer::gemm
