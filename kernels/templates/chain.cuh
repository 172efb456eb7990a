// Memory-bound operators in a row, as one kernel: each row is read once, stays in registers, is stored once.
//
//   source ----> stages ----> finish ----> result
//   (load)       (+ bias, + residual,      (nothing, LayerNorm or softmax, which reduce over the row)
//                 activation, mask bits)
//
// A team of threads owns a row. With V elements an access and a team of T threads, thread t holds
//
//   columns:  [ V of thread 0 | V of thread 1 | ... | V of thread T-1 | V of thread 0 | ... ]
//              <-------------------- visit 0 --------------------->    <---- visit 1 ...
//
// A row that is too long for registers is read again (from cache) for every pass over it.
//
// A kernel names its numbers in a Config: rows, columns, vector, team, threads.
#pragma once

#include "common.cuh"

namespace atoffer {
namespace chain {

// Row elements that a thread keeps in registers: at most 64, and at most half of its share of the 65,536 registers.
constexpr int kMostKept = 64;
constexpr int kKeptByBlock = 32768;
// Accesses in flight where the row does not stay in registers.
constexpr int kStreamed = 2;

template <class Config>
struct Shape {
    static constexpr int rows = Config::rows;
    static constexpr int columns = Config::columns;
    static constexpr int vector = Config::vector;
    static constexpr int team = Config::team;
    static constexpr int threads = Config::threads;

    static constexpr int rows_per_block = threads / team;
    static constexpr int stride = team * vector;
    static constexpr int visits = (columns + stride - 1) / stride;
    static constexpr bool fits = visits * vector <= kMostKept && visits * vector <= kKeptByBlock / threads;
    static constexpr int unroll = fits ? visits : kStreamed;
    static constexpr bool even_rows = rows % rows_per_block == 0;
    static constexpr bool even_columns = columns % stride == 0;

    static_assert(columns % vector == 0, "an access must not reach into the next row");
    static_assert((team & (team - 1)) == 0, "a team halves at every step of a reduction");
    static_assert(threads % team == 0 && threads % kWarpSize == 0, "a block is made of whole teams and whole warps");
};

// ---- Sources: the first read of a row.

template <class Element, int COLUMNS>
struct Load {
    const Element* from;

    template <int V>
    __device__ __forceinline__ void load(float (&values)[V], int row, int column) const {
        load_floats<Element, V>(values, from + row * COLUMNS + column);
    }
};

// Reads (batch, heads, seq, head_dim) as rows of (batch, seq, heads * head_dim).
template <class Element, int SEQ, int HEADS, int HEAD_DIM>
struct MergeHeads {
    const Element* from;

    template <int V>
    __device__ __forceinline__ void load(float (&values)[V], int row, int column) const {
        static_assert(HEAD_DIM % V == 0, "an access must not reach into the next head");
        const int head_row = (row / SEQ * HEADS + column / HEAD_DIM) * SEQ + row % SEQ;
        load_floats<Element, V>(values, from + head_row * HEAD_DIM + column % HEAD_DIM);
    }
};

// ---- Stages: elementwise, in registers.

template <class Element>
struct AddBias {
    const Element* bias;

    template <int V>
    __device__ __forceinline__ void apply(float (&values)[V], int, int column) const {
        float added[V];
        load_floats<Element, V>(added, bias + column);
#pragma unroll
        for (int i = 0; i < V; ++i) values[i] += added[i];
    }
};

template <class Element, int COLUMNS>
struct AddResidual {
    const Element* residual;

    template <int V>
    __device__ __forceinline__ void apply(float (&values)[V], int row, int column) const {
        float added[V];
        load_floats<Element, V>(added, residual + row * COLUMNS + column);
#pragma unroll
        for (int i = 0; i < V; ++i) values[i] += added[i];
    }
};

template <class Activation>
struct Activate {
    template <int V>
    __device__ __forceinline__ void apply(float (&values)[V], int, int) const {
#pragma unroll
        for (int i = 0; i < V; ++i) values[i] = Activation::apply(values[i]);
    }
};

// Drops scores whose bit is clear. Rows are (batch, heads, query); MASKS is 1, or the batch where masks differ in it.
template <int SEQ, int HEADS, int MASKS>
struct DropMasked {
    const unsigned* words;

    template <int V>
    __device__ __forceinline__ void apply(float (&values)[V], int row, int column) const {
        constexpr int kWordBits = 32;
        constexpr int kWords = (SEQ + kWordBits - 1) / kWordBits;
        static_assert(kWordBits % V == 0, "the bits of an access must lie in one word");
        const int mask_row = (MASKS > 1 ? row / (SEQ * HEADS) * SEQ : 0) + row % SEQ;
        const unsigned bits = words[mask_row * kWords + column / kWordBits] >> (column % kWordBits);
#pragma unroll
        for (int i = 0; i < V; ++i) values[i] = (bits >> i & 1u) ? values[i] : negative_infinity();
    }
};

// Drops scores in rows and columns beyond the sequence's length. Rows are (batch, heads, query).
template <int SEQ, int HEADS>
struct DropBeyond {
    const int* lengths;

    template <int V>
    __device__ __forceinline__ void apply(float (&values)[V], int row, int column) const {
        const int length = lengths[row / (SEQ * HEADS)];
        const int columns = row % SEQ < length ? length : 0;
#pragma unroll
        for (int i = 0; i < V; ++i) values[i] = column + i < columns ? values[i] : negative_infinity();
    }
};

// ---- Reductions over a team.

struct Sum {
    static __device__ __forceinline__ float combine(float a, float b) { return a + b; }
};

struct Largest {
    static __device__ __forceinline__ float combine(float a, float b) { return fmaxf(a, b); }
};

// Every thread gets its team's result. All threads of the block must call it: teams of several warps meet in it.
template <class S, class Operation>
__device__ __forceinline__ float reduce_team(float value) {
    constexpr int kLanes = S::team < kWarpSize ? S::team : kWarpSize;
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
        value = Operation::combine(value, __shfl_xor_sync(kFullWarp, value, step));
    }
    if constexpr (S::team > kWarpSize) {
        constexpr int kTeamWarps = S::team / kWarpSize;
        __shared__ float partial[S::threads / kWarpSize];
        const int warp = threadIdx.x / kWarpSize;
        const int first = warp / kTeamWarps * kTeamWarps;
        __syncthreads();  // the previous reduction has been read
        if (threadIdx.x % kWarpSize == 0) partial[warp] = value;
        __syncthreads();
        value = partial[first];
#pragma unroll
        for (int other = 1; other < kTeamWarps; ++other) value = Operation::combine(value, partial[first + other]);
    }
    return value;
}

// ---- Finishes: what happens once the whole row is known. `row.each(body)` calls body(values, column) for every
// access of this thread; changes to the values last where the row fits in registers.

struct Store {
    template <class S, class Row>
    __device__ __forceinline__ void finish(Row& row) const {
        row.each([&](float (&values)[S::vector], int column) { row.store(values, column); });
    }
};

// A sum that carries what its roundings lost (Kahan): wide rows stay within float32's error budget.
struct CompensatedSum {
    float total = 0.0f;
    float lost = 0.0f;

    __device__ __forceinline__ void add(float value) {
        const float corrected = value - lost;
        const float next = total + corrected;
        lost = (next - total) - corrected;
        total = next;
    }
};

// Mean first, then the mean square of the differences from it: no cancellation.
template <class Element>
struct LayerNorm {
    const Element* gamma;
    const Element* beta;
    float epsilon;

    template <class S, class Row>
    __device__ __forceinline__ void finish(Row& row) const {
        constexpr int V = S::vector;
        CompensatedSum sum;
        row.each([&](float (&values)[S::vector], int) {
            float part = values[0];
#pragma unroll
            for (int i = 1; i < V; ++i) part += values[i];
            sum.add(part);
        });
        const float mean = reduce_team<S, Sum>(sum.total) / S::columns;
        CompensatedSum squares;
        row.each([&](float (&values)[S::vector], int) {
            float part = 0.0f;
#pragma unroll
            for (int i = 0; i < V; ++i) part = fmaf(values[i] - mean, values[i] - mean, part);
            squares.add(part);
        });
        const float variance = reduce_team<S, Sum>(squares.total) / S::columns;
        const float scale = 1.0f / sqrtf(variance + epsilon);  // rsqrtf is off by 2 ulp
        row.each([&](float (&values)[S::vector], int column) {
            float factor[V], offset[V], result[V];
            load_floats<Element, V>(factor, gamma + column);
            load_floats<Element, V>(offset, beta + column);
#pragma unroll
            for (int i = 0; i < V; ++i) result[i] = (values[i] - mean) * scale * factor[i] + offset[i];
            row.store(result, column);
        });
    }
};

// A row of nothing but -inf becomes zeros.
struct Softmax {
    template <class S, class Row>
    __device__ __forceinline__ void finish(Row& row) const {
        constexpr int V = S::vector;
        float largest = negative_infinity();
        row.each([&](float (&values)[S::vector], int) {
#pragma unroll
            for (int i = 0; i < V; ++i) largest = fmaxf(largest, values[i]);
        });
        largest = reduce_team<S, Largest>(largest);
        const float shift = largest == negative_infinity() ? 0.0f : largest;
        float sum = 0.0f;
        row.each([&](float (&values)[S::vector], int) {
#pragma unroll
            for (int i = 0; i < V; ++i) {
                values[i] = expf(values[i] - shift);
                sum += values[i];
            }
        });
        sum = reduce_team<S, Sum>(sum);
        const float scale = sum == 0.0f ? 0.0f : 1.0f / sum;
        row.each([&](float (&values)[S::vector], int column) {
            float result[V];
#pragma unroll
            for (int i = 0; i < V; ++i) result[i] = (S::fits ? values[i] : expf(values[i] - shift)) * scale;
            row.store(result, column);
        });
    }
};

// ---- One row in the hands of its team.

template <class S, class Result, class Fetch>
struct Row {
    static constexpr int V = S::vector;
    const Fetch& fetch;
    Result* result;
    int lane;
    bool stored;
    float kept[S::fits ? S::visits : 1][V];

    __device__ __forceinline__ int column_of(int visit) const { return (visit * S::team + lane) * V; }
    __device__ __forceinline__ static bool inside(int column) { return S::even_columns || column < S::columns; }

    __device__ __forceinline__ void read() {
        if constexpr (S::fits) {
#pragma unroll
            for (int visit = 0; visit < S::visits; ++visit) {
                if (inside(column_of(visit))) fetch(kept[visit], column_of(visit));
            }
        }
    }

    template <class Body>
    __device__ __forceinline__ void each(Body body) {
#pragma unroll S::unroll
        for (int visit = 0; visit < S::visits; ++visit) {
            const int column = column_of(visit);
            if (!inside(column)) continue;
            if constexpr (S::fits) {
                body(kept[visit], column);
            } else {
                float values[V];
                fetch(values, column);
                body(values, column);
            }
        }
    }

    __device__ __forceinline__ void store(const float (&values)[V], int column) const {
        if (stored) store_floats<Result, V>(result + column, values);
    }
};

// The kernel's body. Offsets fit in 31 bits: runs of larger tensors are refused.
template <class Config, class Result, class Finish, class Source, class... Stages>
__device__ __forceinline__ void run(Result* result, const Finish& finish, const Source& source, const Stages&... stages) {
    using S = Shape<Config>;
    const int wanted = blockIdx.x * S::rows_per_block + threadIdx.x / S::team;
    // Teams beyond the last row work on it without storing: whole blocks meet in the reductions.
    const bool stored = S::even_rows || wanted < S::rows;
    const int row = stored ? wanted : S::rows - 1;
    const auto fetch = [&](float (&values)[S::vector], int column) {
        source.load(values, row, column);
        (stages.apply(values, row, column), ...);
    };
    Row<S, Result, decltype(fetch)> held{fetch, result + row * S::columns, static_cast<int>(threadIdx.x) % S::team, stored};
    held.read();
    finish.template finish<S>(held);
}

}  // namespace chain
}  // namespace atoffer
