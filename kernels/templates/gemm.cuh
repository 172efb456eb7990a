// C[M, N] = epilogue(prologue(A)[M, K] * W[N, K]^T), accumulated in float32.
//
//              K                      A block computes one TILE_M x TILE_N tile of C. Its warps form a grid of
//        +---+---+---+ W              WARPS_M x WARPS_N, each computing WARP_M x WARP_N of the tile; WARPS_K such
//        |   |TK |   | TILE_N         grids share the inner dimension and are summed in the epilogue.
//        +---+---+---+
//          K                          global --cp.async--> ring of STAGES stages in shared memory, TILE_K columns of
//     +---+---+---+  +--------+       A and W each --ldmatrix--> registers --mma--> float32 sums in registers
//   A |   |TK |   |  | w0  w1 |
//     |   |   |   |  |        | C     prologue: a thread rewrites the pieces it copied itself, before the barrier
//     +---+---+---+  | w2  w3 |       epilogue: strips of 16 rows pass through shared memory as float32, so that
//   TILE_M           +--------+       global loads (bias, residual) and stores move 16 bytes a thread
//
// 16-bit elements multiply on tensor cores (mma.m16n8k16), float32 on CUDA cores. Copies are 16 bytes wide where the
// innermost extent allows it, else 8, 4 or one element; what lies outside a matrix is never read and counts as zero.
#pragma once

#include "common.cuh"

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

template <class T, int TILE_M, int TILE_N, int TILE_K, int WARPS_M, int WARPS_N, int WARPS_K, int STAGES>
struct Tiling {
    using Element = T;
    static constexpr int kTileM = TILE_M, kTileN = TILE_N, kTileK = TILE_K;
    static constexpr int kWarpsM = WARPS_M, kWarpsN = WARPS_N, kWarpsK = WARPS_K;
    static constexpr int kStages = STAGES;
    static constexpr int kWarpM = TILE_M / WARPS_M, kWarpN = TILE_N / WARPS_N;
    static constexpr int kThreads = WARPS_M * WARPS_N * WARPS_K * kWarpSize;
    static constexpr int kBytesA = TILE_M * TILE_K * static_cast<int>(sizeof(T));
    static constexpr int kBytesW = TILE_N * TILE_K * static_cast<int>(sizeof(T));
    static constexpr int kScratchStride = kWarpN + kScratchPadding;
    static constexpr int kScratchFloats = kStripRows * kScratchStride;
    static_assert(kWarpM % kStripRows == 0 && kWarpM * WARPS_M == TILE_M, "warps must divide tile_m into multiples of 16 rows");
    static_assert(kWarpN % 16 == 0 && kWarpN * WARPS_N == TILE_N, "warps must divide tile_n into multiples of 16 columns");
    static_assert(TILE_K % (kMmaK * WARPS_K) == 0, "warps_k must divide tile_k into multiples of 16 columns");
    static_assert(STAGES >= 2, "copies overlap products only with two stages or more");
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

// Copies tiles of TILE_ROWS x TILE_K from `Source`. Piece p, of Source::kVector elements, belongs to thread p % THREADS.
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
    static __device__ __forceinline__ int row(int i) { return piece(i) / kRowPieces; }
    static __device__ __forceinline__ int column(int i) { return piece(i) % kRowPieces * kVector; }
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

// ---- What one warp computes: WARP_M x WARP_N sums in registers.

// Tensor cores. a: WARP_M / 16 fragments of 16 x 16; w: WARP_N / 16 fragments of two 8 x 16 each.
template <class Tiling>
class TensorCoreProduct {
    using T = typename Tiling::Element;
    static constexpr int kFragmentsM = Tiling::kWarpM / kStripRows;
    static constexpr int kFragmentsN = Tiling::kWarpN / (2 * kMmaN);
    static constexpr int kSteps = Tiling::kTileK / kMmaK / Tiling::kWarpsK;

    float sums_[kFragmentsM][2 * kFragmentsN][4] = {};
    int lane_, row_, column_, first_step_;

    struct Fragments {
        unsigned a[kFragmentsM][4];
        unsigned w[kFragmentsN][4];
    };

    __device__ __forceinline__ void load(Fragments& to, unsigned tile_a, unsigned tile_w, int step) const {
        // Matrices of a: (rows 0-7, 8-15) of the low half of k, then of the high half; of w: (k low, high) of columns 0-7, then 8-15.
        const int chunk = 2 * (first_step_ + step);
        const int lane_row_a = lane_ % 16, lane_chunk_a = lane_ / 16;
        const int lane_row_w = lane_ % 8 + lane_ / 16 * 8, lane_chunk_w = lane_ / 8 % 2;
#pragma unroll
        for (int i = 0; i < kFragmentsM; ++i)
            load_matrices(to.a[i], tile_a + chunk_offset<T, Tiling::kTileK>(row_ + i * kStripRows + lane_row_a, chunk + lane_chunk_a));
#pragma unroll
        for (int j = 0; j < kFragmentsN; ++j)
            load_matrices(to.w[j], tile_w + chunk_offset<T, Tiling::kTileK>(column_ + j * 2 * kMmaN + lane_row_w, chunk + lane_chunk_w));
    }

public:
    __device__ __forceinline__ TensorCoreProduct(int lane, int row, int column, int warp_k)
        : lane_(lane), row_(row), column_(column), first_step_(warp_k * kSteps) {}

    // Adds the product of the tiles of one stage; fragments of the next step load while this one multiplies.
    __device__ __forceinline__ void add(const char* tile_a, const char* tile_w) {
        const unsigned a = shared_address(tile_a), w = shared_address(tile_w);
        Fragments fragments[2];
        load(fragments[0], a, w, 0);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            if (step + 1 < kSteps) load(fragments[(step + 1) % 2], a, w, step + 1);
            const Fragments& now = fragments[step % 2];
#pragma unroll
            for (int i = 0; i < kFragmentsM; ++i)
#pragma unroll
                for (int j = 0; j < 2 * kFragmentsN; ++j)
                    multiply_add<T>(sums_[i][j], now.a[i], now.w[j / 2][j % 2 * 2], now.w[j / 2][j % 2 * 2 + 1]);
        }
    }

    // Writes the sums of rows 16 * strip to 16 * strip + 15.
    __device__ __forceinline__ void write_strip(float* scratch, int strip) const {
#pragma unroll
        for (int j = 0; j < 2 * kFragmentsN; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float* to = scratch + (lane_ / 4 + half * 8) * Tiling::kScratchStride + j * kMmaN + lane_ % 4 * 2;
                *reinterpret_cast<float2*>(to) = make_float2(sums_[strip][j][2 * half], sums_[strip][j][2 * half + 1]);
            }
    }
};

// CUDA cores. Four products are summed before they join the total: a quarter of the roundings at the total's size.
template <class Tiling>
class CudaCoreProduct {
    static constexpr int kRows = Tiling::kWarpM / kLaneRows;
    static constexpr int kColumns = Tiling::kWarpN / kLaneColumns;
    static constexpr int kChunks = Tiling::kTileK / kChunkElements<float> / Tiling::kWarpsK;

    float sums_[kRows][kColumns] = {};
    int lane_, row_, column_, first_chunk_;

    static __device__ __forceinline__ float4 chunk_at(const char* tile, int row, int chunk) {
        return *reinterpret_cast<const float4*>(tile + chunk_offset<float, Tiling::kTileK>(row, chunk));
    }

public:
    __device__ __forceinline__ CudaCoreProduct(int lane, int row, int column, int warp_k)
        : lane_(lane), row_(row), column_(column), first_chunk_(warp_k * kChunks) {}

    __device__ __forceinline__ void add(const char* tile_a, const char* tile_w) {
#pragma unroll 2
        for (int chunk = first_chunk_; chunk < first_chunk_ + kChunks; ++chunk) {
            float4 a[kRows];
#pragma unroll
            for (int i = 0; i < kRows; ++i) a[i] = chunk_at(tile_a, row_ + i * kLaneRows + lane_ / kLaneColumns, chunk);
#pragma unroll
            for (int j = 0; j < kColumns; ++j) {
                const float4 w = chunk_at(tile_w, column_ + j * kLaneColumns + lane_ % kLaneColumns, chunk);
#pragma unroll
                for (int i = 0; i < kRows; ++i)
                    sums_[i][j] += fmaf(a[i].w, w.w, fmaf(a[i].z, w.z, fmaf(a[i].y, w.y, a[i].x * w.x)));
            }
        }
    }

    __device__ __forceinline__ void write_strip(float* scratch, int strip) const {
        constexpr int kStripParts = kStripRows / kLaneRows;
#pragma unroll
        for (int part = 0; part < kStripParts; ++part)
#pragma unroll
            for (int j = 0; j < kColumns; ++j) {
                const int row = part * kLaneRows + lane_ / kLaneColumns, column = j * kLaneColumns + lane_ % kLaneColumns;
                scratch[row * Tiling::kScratchStride + column] = sums_[strip * kStripParts + part][j];
            }
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

template <int V>
__device__ __forceinline__ void add_scratch(float (&values)[V], const float* from) {
    constexpr int kWidth = V < 4 ? V : 4;
#pragma unroll
    for (int first = 0; first < V; first += kWidth) {
        float part[kWidth];
        load_floats<float, kWidth>(part, from + first);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) values[first + i] += part[i];
    }
}

// Fills `product` with this block's sums.
template <class Tiling, class SourceA, class SourceW, class Prologue, class Product>
__device__ __forceinline__ void multiply_tiles(Product& product, char* shared, SourceA source_a, SourceW source_w,
                                               int first_row, int first_column, const Prologue& prologue) {
    using T = typename Tiling::Element;
    constexpr int kStages = Tiling::kStages;
    constexpr int kStageBytes = Tiling::kBytesA + Tiling::kBytesW;
    constexpr int kTiles = ceil_div(SourceA::kColumns, Tiling::kTileK);
    const TileCopy<T, SourceA, Tiling::kTileM, Tiling::kTileK, Tiling::kThreads> copy_a(source_a, first_row);
    const TileCopy<T, SourceW, Tiling::kTileN, Tiling::kTileK, Tiling::kThreads> copy_w(source_w, first_column);

    const auto start = [&](int tile, int stage) {
        if (tile < kTiles) {
            copy_a.start(shared + stage * kStageBytes, tile * Tiling::kTileK);
            copy_w.start(shared + stage * kStageBytes + Tiling::kBytesA, tile * Tiling::kTileK);
        }
        commit_copies();  // also where nothing was copied: waiting counts groups
    };
#pragma unroll
    for (int tile = 0; tile < kStages - 1; ++tile) start(tile, tile);

    int stage = 0, free_stage = kStages - 1;
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile) {
        char* tile_a = shared + stage * kStageBytes;
        wait_copies<kStages - 2>();
        if constexpr (!kSame<Prologue, NoPrologue>) copy_a.rewrite(tile_a, tile * Tiling::kTileK, prologue);
        __syncthreads();  // this tile is complete, and every warp is done with the one before it
        start(tile + kStages - 1, free_stage);
        product.add(tile_a, tile_a + Tiling::kBytesA);
        free_stage = stage;
        stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    wait_copies<0>();
    __syncthreads();
}

// Computes tile blockIdx.x of the result, tiles counted along its rows.
template <class Tiling, class SourceA, class SourceW, class Prologue, class Epilogue>
__device__ __forceinline__ void compute_tile(SourceA source_a, SourceW source_w, const Prologue& prologue,
                                             const Epilogue& epilogue, typename Tiling::Element* __restrict__ result) {
    using T = typename Tiling::Element;
    static_assert(SourceA::kColumns == SourceW::kColumns, "both operands share the inner dimension");
    constexpr int kRows = SourceA::kRows, kColumns = SourceW::kRows;
    constexpr int kTilesN = ceil_div(kColumns, Tiling::kTileN);
    constexpr int kVector = widest_vector(kColumns, kChunkElements<T>);
    constexpr int kRowPieces = Tiling::kWarpN / kVector;
    extern __shared__ __align__(128) char shared[];

    const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
    const int warp_k = warp / (Tiling::kWarpsM * Tiling::kWarpsN), warp_mn = warp % (Tiling::kWarpsM * Tiling::kWarpsN);
    const int warp_row = warp_mn / Tiling::kWarpsN * Tiling::kWarpM, warp_column = warp_mn % Tiling::kWarpsN * Tiling::kWarpN;
    const int first_row = blockIdx.x / kTilesN * Tiling::kTileM, first_column = blockIdx.x % kTilesN * Tiling::kTileN;

    typename ProductOf<Tiling>::Type product(lane, warp_row, warp_column, warp_k);
    multiply_tiles<Tiling>(product, shared, source_a, source_w, first_row, first_column, prologue);

    // Scratch of the warps that share a part of the tile, one for each warp_k, lie side by side.
    float* group = reinterpret_cast<float*>(shared) + warp_mn * Tiling::kWarpsK * Tiling::kScratchFloats;
    const auto synchronise = [] {
        if constexpr (Tiling::kWarpsK == 1) __syncwarp();
        else __syncthreads();
    };
#pragma unroll
    for (int strip = 0; strip < Tiling::kWarpM / kStripRows; ++strip) {
        product.write_strip(group + warp_k * Tiling::kScratchFloats, strip);
        synchronise();
#pragma unroll
        for (int piece = warp_k * kWarpSize + lane; piece < kStripRows * kRowPieces; piece += kWarpSize * Tiling::kWarpsK) {
            const int strip_row = piece / kRowPieces, strip_column = piece % kRowPieces * kVector;
            const int row = first_row + warp_row + strip * kStripRows + strip_row;
            const int column = first_column + warp_column + strip_column;
            if ((kRows % Tiling::kTileM != 0 && row >= kRows) || (kColumns % Tiling::kTileN != 0 && column >= kColumns)) continue;
            float values[kVector] = {};
#pragma unroll
            for (int part = 0; part < Tiling::kWarpsK; ++part) {
                const float* from = group + part * Tiling::kScratchFloats + strip_row * Tiling::kScratchStride + strip_column;
                add_scratch(values, from);
            }
            epilogue(values, row, column);
            store_floats<T, kVector>(result + static_cast<size_t>(row) * kColumns + column, values);
        }
        synchronise();
    }
}

}  // namespace atoffer::gemm
