// Attention, one query row a warp: only the columns that the mask keeps are visited, from a list.
//
//   block = WARPS query rows of one head (their keys and values meet in the L1 cache)
//
//   warp:  LANES threads share a column, each holds a slice of head_dim; 32 / LANES columns at a time,
//          UNROLL of them in flight a team
//
//            lanes 0..7      8..15      16..23     24..31
//          [ column j0  ] [ j0 + 1 ] [ j0 + 2 ] [ j0 + 3 ]      (LANES = 8)
//
//   1. products:  q . k over slices, summed within the team     -> staged scores in shared memory
//      or reads:  stored scores, masked scores or probabilities -> the same place
//   2. softmax over the staged row, in float32                     (runs with operator 4)
//   3. context:   sum of p * v in registers, then over the teams   (runs with operator 5)
//      or the staged row goes to global memory in full             (runs that end before it)
//
// A staged row holds the listed columns one after another, or, if it is stored masked, all columns in place with
// -inf where the mask drops them. Nothing is ever read of a column that is not listed.
//
// Bias (runs from operator 1): q gets it when it is loaded. q . (k + b) = q . k + q . b: the second is the same for
// all columns, so softmax cancels it and stored scores add it once. sum p (v + b) = sum p v + b, because the p of a
// row add up to 1. Runs that operator 5 follows store q, k, v with bias: the warp of query i stores token i of its
// head, so every element has one writer.
//
// Padded: sequences have lengths. A list then ends where its columns, which ascend, reach the length; a row beyond it
// has none. Nothing is read of keys and values beyond a length, and such rows are stored as those that keep nothing.
//
// Packed: a sequence's tokens lie from the row that its offset names on. Rows beyond a length belong to others, or to
// nobody: they are not stored.
//
// A kernel names its numbers in a Config: see Shape. All offsets fit in 31 bits: runs of larger tensors are refused.
#pragma once

#include "common.cuh"

namespace atoffer {
namespace rowwise {

template <class Element>
struct Inputs {
    const Element* qkv_raw = nullptr;          // (batch, seq, 3, heads, head_dim)
    const Element* b_qkv = nullptr;            // (3, heads, head_dim)
    const Element* qkv = nullptr;              // (batch, seq, 3, heads, head_dim)
    const float* scores = nullptr;             // (batch, heads, seq, seq)
    const float* masked_scores = nullptr;      // (batch, heads, seq, seq)
    const Element* probs = nullptr;            // (batch, heads, seq, seq)
    const int* lengths = nullptr;              // (batch)
    const int* offsets = nullptr;              // (batch): rows at which sequences begin
    const int* mask_starts = nullptr;          // (masks, seq + 1)
    const int* mask_columns = nullptr;         // kept columns, row after row
};

template <class Element>
struct Outputs {
    Element* qkv = nullptr;
    float* scores = nullptr;
    float* masked_scores = nullptr;
    Element* probs = nullptr;
    Element* context = nullptr;  // (batch, heads, seq, head_dim)
    Element* merged = nullptr;   // (batch, seq, heads * head_dim)
};

constexpr int kMostSliced = 32;    // elements of head_dim that a lane may hold of one column
constexpr int kMostInFlight = 64;  // and of all its columns in flight

template <class Config, bool PADDED, bool PACKED>
struct Shape {
    using Element = typename Config::Element;
    static constexpr int seq = Config::seq;
    static constexpr int heads = Config::heads;
    static constexpr int head_dim = Config::head_dim;
    static constexpr int width = heads * head_dim;
    static constexpr int token = 3 * width;  // elements from a token of q, k, v to the next
    static constexpr int masks = Config::masks;
    static constexpr float scale = Config::scale;

    // What the run contains.
    static constexpr bool adds_bias = Config::first == 1;
    static constexpr bool multiplies = Config::first <= 2;
    static constexpr bool listed = Config::first <= 3 && Config::last >= 3;
    static constexpr bool normalises = Config::first <= 4 && Config::last >= 4;
    static constexpr bool sums_values = Config::last >= 5;
    static constexpr bool merges = Config::last == 6;
    static constexpr bool stores_qkv = adds_bias && !sums_values;
    static constexpr bool in_place = listed && !sums_values;
    static constexpr bool padded = PADDED;
    static constexpr bool packed = PACKED;

    // How it is cut.
    static constexpr int warps = Config::warps;
    static constexpr int lanes = Config::lanes;
    static constexpr int unroll = Config::unroll;
    static constexpr int staged = Config::staged;  // floats of a staged row
    static constexpr int tiles = (seq + warps - 1) / warps;
    static constexpr int teams = kWarpSize / lanes;
    static constexpr int vector = Config::vector;
    static constexpr int pieces = (head_dim + lanes * vector - 1) / (lanes * vector);
    static constexpr int slice = pieces * vector;
    static constexpr bool even = head_dim == lanes * slice;

    static_assert((lanes & (lanes - 1)) == 0 && lanes <= kWarpSize, "teams divide a warp");
    static_assert(head_dim % vector == 0, "an access must not reach into the next head");
    static_assert(slice <= kMostSliced && unroll * slice <= kMostInFlight, "columns in flight must fit in registers");
    static_assert(!padded || listed, "lengths are the mask operator's");
    static_assert(!packed || (padded && multiplies && merges), "packed rows are read and stored as tokens alone");
    static_assert((listed && sums_values) || staged >= seq, "a row that is not summed as its list is read is staged in full");
};

// Which of q, k, v.
enum Part { kQuery = 0, kKey = 1, kValue = 2 };

// A lane's part of head_dim: `pieces` accesses of `vector` elements, `lanes` accesses apart.
template <class S>
struct Slice {
    float values[S::slice];

    static __device__ __forceinline__ int offset(int piece, int lane) { return (piece * S::lanes + lane) * S::vector; }
    static __device__ __forceinline__ bool inside(int offset) { return S::even || offset < S::head_dim; }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < S::slice; ++i) values[i] = 0.0f;
    }

    // `from` is the first of head_dim elements; what lies beyond them counts as zeros.
    __device__ __forceinline__ void load(const typename S::Element* from, int lane) {
        clear();
#pragma unroll
        for (int piece = 0; piece < S::pieces; ++piece) {
            if (!inside(offset(piece, lane))) continue;
            float part[S::vector];
            load_floats<typename S::Element, S::vector>(part, from + offset(piece, lane));
#pragma unroll
            for (int i = 0; i < S::vector; ++i) values[piece * S::vector + i] = part[i];
        }
    }

    __device__ __forceinline__ void store(typename S::Element* to, int lane) const {
#pragma unroll
        for (int piece = 0; piece < S::pieces; ++piece) {
            if (!inside(offset(piece, lane))) continue;
            float part[S::vector];
#pragma unroll
            for (int i = 0; i < S::vector; ++i) part[i] = values[piece * S::vector + i];
            store_floats<typename S::Element, S::vector>(to + offset(piece, lane), part);
        }
    }

    // values += factor * other
    __device__ __forceinline__ void add(const Slice& other, float factor) {
#pragma unroll
        for (int i = 0; i < S::slice; ++i) values[i] = fmaf(factor, other.values[i], values[i]);
    }

    __device__ __forceinline__ void multiply(float factor) {
#pragma unroll
        for (int i = 0; i < S::slice; ++i) values[i] *= factor;
    }

    __device__ __forceinline__ float dot(const Slice& other) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < S::slice; ++i) sum = fmaf(values[i], other.values[i], sum);
        return sum;
    }
};

// Sums each of `values` over the lanes of a team; every lane gets the sums.
template <class S, int N>
__device__ __forceinline__ void sum_team(float (&values)[N]) {
#pragma unroll
    for (int step = S::lanes / 2; step > 0; step /= 2) {
#pragma unroll
        for (int i = 0; i < N; ++i) values[i] += __shfl_xor_sync(kFullWarp, values[i], step);
    }
}

// A warp's query row, and what a lane has to know of it.
template <class S>
struct Query {
    using Element = typename S::Element;
    int batch, head, index;  // the row
    int first_row;           // of the sequence, among all tokens
    int team, lane;          // the lane's team, and its place there

    // First of head_dim elements of `part` of the row's head, for token 0 of the sequence.
    __device__ __forceinline__ int first_token(Part part) const {
        return first_row * S::token + part * S::width + head * S::head_dim;
    }
    __device__ __forceinline__ int bias(Part part) const { return part * S::width + head * S::head_dim; }
    __device__ __forceinline__ int score_row() const { return ((batch * S::heads + head) * S::seq + index) * S::seq; }
};

// The columns to visit: the mask's list, or all.
template <class S>
struct Columns {
    const int* list;
    int count;

    __device__ __forceinline__ Columns(const Inputs<typename S::Element>& in, const Query<S>& query)
        : list(nullptr), count(S::seq) {
        if constexpr (S::listed) {
            const int* starts = in.mask_starts + (S::masks > 1 ? query.batch * (S::seq + 1) : 0) + query.index;
            list = in.mask_columns + starts[0];
            count = starts[1] - starts[0];
        }
        if constexpr (S::padded) {
            const int length = in.lengths[query.batch];
            count = query.index < length ? places_below(length) : 0;
        }
    }

    // How many of the listed columns lie below `limit`: every step, the lanes try 32 places and keep one gap of them.
    __device__ __forceinline__ int places_below(int limit) const {
        int low = 0, high = count;
        while (low < high) {
            const int step = (high - low + kWarpSize - 1) / kWarpSize;
            const int place = low + static_cast<int>(threadIdx.x) % kWarpSize * step;
            const int below = __popc(__ballot_sync(kFullWarp, place < high && list[place] < limit));
            if (below == 0) break;
            high = min(high, low + below * step);
            low += (below - 1) * step + 1;
        }
        return low;
    }

    __device__ __forceinline__ int operator[](int place) const { return S::listed ? list[place] : place; }
};

// Stores q, k and v of the query's own token with their bias.
template <class S>
__device__ __forceinline__ void store_biased(const Inputs<typename S::Element>& in, typename S::Element* qkv,
                                             const Query<S>& query) {
#pragma unroll
    for (int part = 0; part < 3; ++part) {
        if (part % S::teams != query.team) continue;
        const int offset = query.first_token(static_cast<Part>(part)) + query.index * S::token;
        Slice<S> values, bias;
        values.load(in.qkv_raw + offset, query.lane);
        bias.load(in.b_qkv + query.bias(static_cast<Part>(part)), query.lane);
        values.add(bias, 1.0f);
        values.store(qkv + offset, query.lane);
    }
}

// Stages the scaled products of the query with the listed keys.
template <class S>
__device__ __forceinline__ void stage_products(const Inputs<typename S::Element>& in, const Query<S>& query,
                                               const Columns<S>& columns, float* staged) {
    const typename S::Element* qkv = S::adds_bias ? in.qkv_raw : in.qkv;
    Slice<S> q;
    q.load(qkv + query.first_token(kQuery) + query.index * S::token, query.lane);
    if constexpr (S::adds_bias) {
        Slice<S> bias;
        bias.load(in.b_qkv + query.bias(kQuery), query.lane);
        q.add(bias, 1.0f);
    }
    float from_bias[1] = {0.0f};
    if constexpr (S::adds_bias && !S::normalises) {
        Slice<S> bias;
        bias.load(in.b_qkv + query.bias(kKey), query.lane);
        from_bias[0] = q.dot(bias);
        sum_team<S>(from_bias);
    }
    const typename S::Element* keys = qkv + query.first_token(kKey);
    // All lanes stay in the loop, for the sums; places beyond the end repeat the last column.
    for (int first = 0; first < columns.count; first += S::teams * S::unroll) {
        int column[S::unroll];
        float product[S::unroll];
        Slice<S> key[S::unroll];
#pragma unroll
        for (int u = 0; u < S::unroll; ++u) {
            column[u] = columns[min(first + u * S::teams + query.team, columns.count - 1)];
            key[u].load(keys + column[u] * S::token, query.lane);
        }
#pragma unroll
        for (int u = 0; u < S::unroll; ++u) product[u] = q.dot(key[u]);
        sum_team<S>(product);
#pragma unroll
        for (int u = 0; u < S::unroll; ++u) {
            const int place = first + u * S::teams + query.team;
            if (query.lane == 0 && place < columns.count) {
                staged[S::in_place ? column[u] : place] = (product[u] + from_bias[0]) * S::scale;
            }
        }
    }
}

// Stages what an earlier segment stored of the row.
template <class S>
__device__ __forceinline__ void stage_stored(const Inputs<typename S::Element>& in, const Query<S>& query,
                                             const Columns<S>& columns, float* staged) {
    const int row = query.score_row();
    for (int place = threadIdx.x % kWarpSize; place < columns.count; place += kWarpSize) {
        if constexpr (S::listed) {
            staged[place] = in.scores[row + columns[place]];
        } else if constexpr (S::normalises) {
            staged[place] = in.masked_scores[row + place];
        } else {
            staged[place] = to_float(in.probs[row + place]);
        }
    }
}

// Turns `count` staged scores into exp(score - largest); returns their sum, 0 if there is nothing but -inf.
__device__ __forceinline__ float exponentiate(float* staged, int count) {
    const int lane = threadIdx.x % kWarpSize;
    float largest = negative_infinity();
    for (int place = lane; place < count; place += kWarpSize) largest = fmaxf(largest, staged[place]);
    largest = warp_max(largest);
    const float shift = largest == negative_infinity() ? 0.0f : largest;
    float sum = 0.0f;
    for (int place = lane; place < count; place += kWarpSize) {
        const float value = expf(staged[place] - shift);
        staged[place] = value;
        sum += value;
    }
    return warp_sum(sum);
}

// Sums the listed values, weighted with the staged row, over the whole warp.
template <class S>
__device__ __forceinline__ Slice<S> sum_values(const typename S::Element* values, const Query<S>& query,
                                               const Columns<S>& columns, const float* staged) {
    Slice<S> sum;
    sum.clear();
    for (int first = query.team; first < columns.count; first += S::teams * S::unroll) {
        float weight[S::unroll];
        Slice<S> value[S::unroll];
#pragma unroll
        for (int u = 0; u < S::unroll; ++u) {
            const int place = min(first + u * S::teams, columns.count - 1);
            weight[u] = staged[place];
            value[u].load(values + columns[place] * S::token, query.lane);
        }
#pragma unroll
        for (int u = 0; u < S::unroll; ++u) {
            if (first + u * S::teams < columns.count) sum.add(value[u], weight[u]);
        }
    }
#pragma unroll
    for (int step = S::lanes; step < kWarpSize; step *= 2) {
#pragma unroll
        for (int i = 0; i < S::slice; ++i) sum.values[i] += __shfl_xor_sync(kFullWarp, sum.values[i], step);
    }
    return sum;
}

// Sums the values and stores the query's context. `total` is what the staged row adds up to.
template <class S>
__device__ __forceinline__ void store_context(const Inputs<typename S::Element>& in,
                                              const Outputs<typename S::Element>& out, const Query<S>& query,
                                              const Columns<S>& columns, const float* staged, float total) {
    const typename S::Element* qkv = S::adds_bias ? in.qkv_raw : in.qkv;
    Slice<S> sum = sum_values<S>(qkv + query.first_token(kValue), query, columns, staged);
    if constexpr (S::normalises) {
        sum.multiply(total == 0.0f ? 0.0f : 1.0f / total);
    }
    if constexpr (S::adds_bias) {
        Slice<S> bias;
        bias.load(in.b_qkv + query.bias(kValue), query.lane);
        sum.add(bias, total == 0.0f ? 0.0f : 1.0f);
    }
    if (query.team != 0) return;
    if constexpr (S::merges) {
        const int token = query.first_row + query.index;
        sum.store(out.merged + token * S::width + query.head * S::head_dim, query.lane);
    } else {
        const int row = (query.batch * S::heads + query.head) * S::seq + query.index;
        sum.store(out.context + row * S::head_dim, query.lane);
    }
}

// Stores the staged row in full: scores, masked scores, or probabilities that add up to `total` before division.
template <class S>
__device__ __forceinline__ void store_row(const Outputs<typename S::Element>& out, const Query<S>& query,
                                          const float* staged, float total) {
    const int row = query.score_row();
    for (int column = threadIdx.x % kWarpSize; column < S::seq; column += kWarpSize) {
        if constexpr (S::normalises) {
            const float factor = total == 0.0f ? 0.0f : 1.0f / total;
            out.probs[row + column] = from_float<typename S::Element>(staged[column] * factor);
        } else if constexpr (S::listed) {
            out.masked_scores[row + column] = staged[column];
        } else {
            out.scores[row + column] = staged[column];
        }
    }
}

// The kernel's body; dynamic shared memory holds `staged` floats a warp.
template <class Config, bool PADDED = false, bool PACKED = false>
__device__ __forceinline__ void run(const Inputs<typename Config::Element>& in,
                                    const Outputs<typename Config::Element>& out) {
    using S = Shape<Config, PADDED, PACKED>;
    extern __shared__ float shared[];
    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    const int block = blockIdx.x;
    Query<S> query;
    query.index = block % S::tiles * S::warps + warp;
    query.head = block / S::tiles % S::heads;
    query.batch = block / S::tiles / S::heads;
    query.team = lane / S::lanes;
    query.lane = lane % S::lanes;
    if (query.index >= S::seq) return;  // a whole warp leaves; nothing below waits for another warp
    query.first_row = query.batch * S::seq;
    if constexpr (S::packed) {
        if (query.index >= in.lengths[query.batch]) return;
        query.first_row = in.offsets[query.batch];
    }

    float* staged = shared + warp * S::staged;
    const Columns<S> columns(in, query);
    if constexpr (S::stores_qkv) store_biased<S>(in, out.qkv, query);
    if constexpr (S::in_place) {
        for (int column = lane; column < S::seq; column += kWarpSize) staged[column] = negative_infinity();
        __syncwarp();
    }
    if constexpr (S::multiplies) {
        stage_products<S>(in, query, columns, staged);
    } else {
        stage_stored<S>(in, query, columns, staged);
    }
    __syncwarp();
    float total = 1.0f;
    if constexpr (S::normalises) {
        total = exponentiate(staged, S::in_place ? S::seq : columns.count);
        __syncwarp();
    }
    if constexpr (S::sums_values) {
        store_context<S>(in, out, query, columns, staged, total);
    } else {
        store_row<S>(out, query, staged, total);
    }
}

}  // namespace rowwise
}  // namespace atoffer
