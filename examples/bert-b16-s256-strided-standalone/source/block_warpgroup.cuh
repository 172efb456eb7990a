// Block attention, products: one warpgroup's queries, running softmax and sums in registers.
#pragma once

#include "block_layout.cuh"
#include "pairs.cuh"

namespace atoffer::block {

// Transposes 4 x 4 registers over the four lanes of a quad: afterwards lane c holds in x[i] what lane i held in x[c].
// A vector of 8 elements is 4 pairs: this turns whole vectors, one a lane, into the pairs that products take.
__device__ __forceinline__ void transpose_quad(unsigned (&x)[kQuad]) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < kQuad; i += 2) {
        const unsigned received = __shfl_xor_sync(kFullWarp, odd ? x[i] : x[i + 1], 1);
        x[i] = odd ? received : x[i];
        x[i + 1] = odd ? x[i + 1] : received;
    }
#pragma unroll
    for (int i = 0; i < kQuad / 2; ++i) {
        const unsigned received = __shfl_xor_sync(kFullWarp, high ? x[i] : x[i + 2], 2);
        x[i] = high ? received : x[i];
        x[i + 2] = high ? x[i + 2] : received;
    }
}

template <class Shape>
struct Warpgroup {
    using Block = Blocking<Shape>;
    using Element = typename Shape::Element;
    static constexpr int kDepthSteps = Block::kHeadDim / kDepth;       // products across the channels
    static constexpr int kColumnSteps = Block::kColumns / kDepth;      // products across a block's columns
    static constexpr int kPanelSteps = kPanelElements / kDepth;
    static constexpr int kStepBytes = kDepth * 2;                      // of channels, within a panel's row
    static constexpr int kColumnStepBytes = kDepth * kPanelRowBytes;   // of columns, down a panel
    static constexpr int kVectorGroups = Block::kRowVectors / kQuad;   // vectors a quad moves at a time
    static constexpr int kPanelVectors = kPanelElements / kVectorElements;
    static constexpr int kStagedPanelBytes = kWarpRows * kPanelRowBytes;

    int lane, group, tile_row;  // tile_row: of this lane's first row; its second is 8 further
    int query_at;               // where this lane's first vector of queries is
    unsigned query[kDepthSteps][4];
    unsigned shared_queries;  // address
    float scores[Block::kColumns / 2];
    unsigned probabilities[kColumnSteps][4];
    float sum[Block::kHeadDim / 2];
    float maximum[2];  // of the rows' scores, unscaled; where sums are rescaled lazily, or a little less
    float total[2];    // of their exponentials, this lane's columns only
    unsigned kept[2][Block::kRowWords];  // of the block, where it has a bitmap: which columns each row keeps

    // Queries on their way from device memory, whole vectors.
    struct Fetched {
        uint4 vectors[kVectorGroups][2];
    };

    __device__ __forceinline__ void start(unsigned base, int warpgroup, const Task<Shape>& task) {
        lane = threadIdx.x % kWarpSize;
        group = warpgroup;
        tile_row = group * kWarpgroupRows + threadIdx.x % kWarpgroupSize / kWarpSize * kWarpRows + lane / kQuad;
        shared_queries = base + group * Block::kPanels * Block::kQueryPanelBytes;
        if constexpr (!Block::kCopiesQueries) {
            query_at = task.queries_at() + tile_row * Block::kTokenStride + lane % kQuad * kVectorElements;
            settle(query_at);
        }
#pragma unroll
        for (int i = 0; i < Block::kHeadDim / 2; ++i) sum[i] = 0.0f;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            maximum[r] = negative_infinity();
            total[r] = 0.0f;
        }
    }

    // Reads whole vectors and adds the bias. Rows beyond the sequence are zeros.
    __device__ __forceinline__ void fetch_queries(Fetched& fetched, const Element* qkv, const Element* bias,
                                                  int rows) const {
#pragma unroll
        for (int g = 0; g < kVectorGroups; ++g) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                uint4& loaded = fetched.vectors[g][r];
                loaded = make_uint4(0, 0, 0, 0);
                if (tile_row + r * 8 < rows) {
                    constexpr int kGroupElements = kQuad * kVectorElements;
                    loaded = *reinterpret_cast<const uint4*>(qkv + query_at + r * 8 * Block::kTokenStride + g * kGroupElements);
                    if constexpr (Shape::kAddBias) {
                        const int vector = g * kQuad + lane % kQuad;
                        loaded = biased(loaded, *reinterpret_cast<const uint4*>(bias + vector * kVectorElements));
                    }
                }
            }
        }
    }

    // Brings queries where products look for them: into shared memory, or as pairs into registers.
    __device__ __forceinline__ void place_queries(const Fetched& fetched) {
#pragma unroll
        for (int g = 0; g < kVectorGroups; ++g) {
#pragma unroll
            for (int r = 0; r < 2; ++r) place_vector(fetched.vectors[g][r], g, r);
        }
        if constexpr (Shape::kSharedQueries) {
            fence_shared();
            synchronise_some<kWarpgroupSize>(Block::kQueryBarrier + group);
        }
    }

    static __device__ __forceinline__ uint4 biased(uint4 x, uint4 bias) {
        return make_uint4(add_pairs<Element>(x.x, bias.x), add_pairs<Element>(x.y, bias.y),
                          add_pairs<Element>(x.z, bias.z), add_pairs<Element>(x.w, bias.w));
    }

    __device__ __forceinline__ void place_vector(uint4 loaded, int g, int r) {
        if constexpr (Shape::kSharedQueries) {
            const int row = tile_row % kWarpgroupRows + r * 8, vector = g * kQuad + lane % kQuad;
            const unsigned to = shared_queries + vector / kPanelVectors * Block::kQueryPanelBytes +
                                panel_offset(row, vector % kPanelVectors);
            store_vector(to, loaded);
        } else {
            unsigned pairs[kQuad] = {loaded.x, loaded.y, loaded.z, loaded.w};
            transpose_quad(pairs);  // now pair c of vectors 4g to 4g + 3
#pragma unroll
            for (int i = 0; i < kQuad; ++i) query[g * 2 + i / 2][i % 2 * 2 + r] = pairs[i];
        }
    }

    // Issues scores = queries * keys^T for the block at `keys`.
    __device__ __forceinline__ void issue_scores(unsigned keys) {
        if constexpr (!Shape::kSharedQueries) pin(query);
        pin(scores);
        fence_products();
        const PanelDescriptor key_rows(keys, 16), query_rows(shared_queries, 16);
#pragma unroll
        for (int k = 0; k < kDepthSteps; ++k) {
            const int panel = k / kPanelSteps, within = k % kPanelSteps * kStepBytes;
            const auto b = key_rows.at(panel * Block::kPanelBytes + within);
            if constexpr (Shape::kSharedQueries) {
                const auto a = query_rows.at(panel * Block::kQueryPanelBytes + within);
                issue_product<Element, Block::kColumns, false>(scores, a, b, k > 0);
            } else {
                issue_product<Element, Block::kColumns, false>(scores, query[k], b, k > 0);
            }
        }
        commit_products();
    }

    // Issues sum += probabilities * values for the block at `values`.
    __device__ __forceinline__ void issue_sum(unsigned values) {
        pin(probabilities);
        pin(sum);
        fence_products();
        const PanelDescriptor value_rows(values, Block::kPanelBytes);
#pragma unroll
        for (int k = 0; k < kColumnSteps; ++k) {
            const auto b = value_rows.at(k * kColumnStepBytes);
            issue_product<Element, Block::kHeadDim, true>(sum, probabilities[k], b, true);
        }
        commit_products();
    }

    // Reads the words of this thread's rows of bitmap `number`; they come while products run.
    __device__ __forceinline__ void fetch_bitmap(const unsigned* bitmaps, int number) {
        using Words = Vector<unsigned, Block::kRowWords>;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = number * Block::kRows + tile_row + r * 8;
            const Words words = *reinterpret_cast<const Words*>(bitmaps + row * Block::kRowWords);
#pragma unroll
            for (int w = 0; w < Block::kRowWords; ++w) kept[r][w] = words.values[w];
        }
    }

    // Scores that the bitmap does not keep become -inf.
    __device__ __forceinline__ void mask_scores() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int w = 0; w < Block::kRowWords; ++w) {
                const unsigned word = kept[r][w] >> lane % kQuad * 2;
#pragma unroll
                for (int bit = 0; bit < kWordBits; bit += 8) {
                    float* pair = scores + (w * kWordBits + bit) / 2 + 2 * r;
                    pair[0] = word >> bit & 1 ? pair[0] : negative_infinity();
                    pair[1] = word >> (bit + 1) & 1 ? pair[1] : negative_infinity();
                }
            }
        }
    }

    // Scores become unnormalised probabilities in float32, and total is brought to the maximum that they are relative
    // to. `factor` receives what brings sum to it; returns whether it is anything but 1.
    __device__ __forceinline__ bool soften(float (&factor)[2]) {
        float top[2], base[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float highest[2] = {scores[2 * r], scores[2 * r + 1]};  // two chains of comparisons
#pragma unroll
            for (int i = 2 * r + 4; i < Block::kColumns / 2; i += 4) {
                highest[0] = fmaxf(highest[0], scores[i]);
                highest[1] = fmaxf(highest[1], scores[i + 1]);
            }
            top[r] = fmaxf(highest[0], highest[1]);
            factor[r] = 1.0f;
        }
        const bool raises = !Shape::kLazy || __any_sync(kFullWarp, behind(top));
        if (raises) raise_maximum(top, factor);
        float added[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}};
#pragma unroll
        for (int r = 0; r < 2; ++r) base[r] = maximum[r] == negative_infinity() ? 0.0f : maximum[r] * Shape::kScaleLog2;
#pragma unroll
        for (int i = 0; i < Block::kColumns / 2; ++i) {
            scores[i] = exp2_fast(fmaf(scores[i], Shape::kScaleLog2, -base[i / 2 % 2]));
            added[i / 2 % 2][i % 2] += scores[i];
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) total[r] = fmaf(total[r], factor[r], added[r][0] + added[r][1]);
        return raises;
    }

    // Whether this lane has seen a score that the maximum is left far behind.
    __device__ __forceinline__ bool behind(const float (&top)[2]) const {
        constexpr float kSlack = kSlackLog2 / Shape::kScaleLog2;
        return top[0] > maximum[0] + kSlack || top[1] > maximum[1] + kSlack;
    }

    // Brings the maxima to the highest score that the lanes of each row have seen.
    __device__ __forceinline__ void raise_maximum(const float (&top)[2], float (&factor)[2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float highest = fmaxf(maximum[r], top[r]);
            highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, 2));
            const float base = highest == negative_infinity() ? 0.0f : highest * Shape::kScaleLog2;
            factor[r] = exp2_fast(fmaf(maximum[r], Shape::kScaleLog2, -base));
            maximum[r] = highest;
        }
    }

    // The softmax is over before what follows, a wait for products that run meanwhile.
    __device__ __forceinline__ void finish_softmax() const { settle(total[0] + total[1], shared_queries); }

    __device__ __forceinline__ void pack_probabilities() {
#pragma unroll
        for (int i = 0; i < Block::kColumns / 4; ++i) {
            probabilities[i / 4][i % 4] = pack_pair<Element>(scores[2 * i], scores[2 * i + 1]);
        }
    }

    __device__ __forceinline__ void rescale(const float (&factor)[2]) {
#pragma unroll
        for (int i = 0; i < Block::kHeadDim / 2; ++i) sum[i] *= factor[i / 2 % 2];
    }

    // ---- Partial results, of ranks that share rows: a warp's vectors lie by lane.

    // Stores them at a remote address, where `barrier` counts them.
    __device__ __forceinline__ void give(unsigned remote, unsigned barrier) const {
        const unsigned to = remote + lane * kVectorBytes;
        store_remote(to, make_float4(maximum[0], maximum[1], total[0], total[1]), barrier);
#pragma unroll
        for (int i = 1; i < Block::kPartialVectors; ++i) {
            const float* four = sum + 4 * (i - 1);
            store_remote(to + i * kWarpSize * kVectorBytes, make_float4(four[0], four[1], four[2], four[3]), barrier);
        }
    }

    // Merges them with this warp's own.
    __device__ __forceinline__ void take(unsigned partial) {
        const auto load = [&](int i) { return load_floats(partial + (i * kWarpSize + lane) * kVectorBytes); };
        const float4 of_rows = load(0);
        const float their_maximum[2] = {of_rows.x, of_rows.y}, their_total[2] = {of_rows.z, of_rows.w};
        float own[2], theirs[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float highest = fmaxf(maximum[r], their_maximum[r]);
            const float base = highest == negative_infinity() ? 0.0f : highest * Shape::kScaleLog2;
            own[r] = exp2_fast(fmaf(maximum[r], Shape::kScaleLog2, -base));
            theirs[r] = exp2_fast(fmaf(their_maximum[r], Shape::kScaleLog2, -base));
            total[r] = fmaf(total[r], own[r], their_total[r] * theirs[r]);
            maximum[r] = highest;
        }
#pragma unroll
        for (int i = 1; i < Block::kPartialVectors; ++i) {
            const float4 four = load(i);
            float* value = sum + 4 * (i - 1);
            value[0] = fmaf(value[0], own[0], four.x * theirs[0]);
            value[1] = fmaf(value[1], own[0], four.y * theirs[0]);
            value[2] = fmaf(value[2], own[1], four.z * theirs[1]);
            value[3] = fmaf(value[3], own[1], four.w * theirs[1]);
        }
    }

    // Divides by the totals, adds the bias of the values and writes whole vectors, by way of the 16 rows of a panel, or
    // of two, at the shared address `staging`. A row that keeps nothing has a total of 0 and becomes zeros, whatever its
    // sums are. `bias` is that of this head's values; `rows` are left in the sequence.
    __device__ __forceinline__ void store(Element* result, int stride, const Element* bias, int rows, unsigned staging) {
        float factor[2];
        unsigned keeps[2];  // all bits, or none
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            total[r] += __shfl_xor_sync(kFullWarp, total[r], 1);
            total[r] += __shfl_xor_sync(kFullWarp, total[r], 2);
            factor[r] = __fdividef(1.0f, total[r]);
            keeps[r] = total[r] == 0.0f ? 0 : ~0u;
        }
        const unsigned to = staging + panel_offset(lane % kWarpRows, lane / kWarpRows);
#pragma unroll
        for (int n = 0; n < Block::kRowVectors; n += 2) {
            unsigned pairs[4];  // of vector n: rows 0 to 7, 8 to 15; of the next the same
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int vector = n + i / 2, r = i % 2;
                float offset[2] = {0.0f, 0.0f};
                if constexpr (Shape::kAddBias) {
                    load_floats<Element, 2>(offset, bias + vector * kVectorElements + lane % kQuad * 2);
                }
                const float low = fmaf(sum[4 * vector + 2 * r], factor[r], offset[0]);
                const float high = fmaf(sum[4 * vector + 2 * r + 1], factor[r], offset[1]);
                pairs[i] = pack_pair<Element>(low, high) & keeps[r];
            }
            store_matrices((to ^ n % kPanelVectors * kVectorBytes) + n / kPanelVectors * kStagedPanelBytes, pairs);
        }
        __syncwarp();
        constexpr int kReads = kWarpRows * Block::kRowVectors / kWarpSize, kReadRows = kWarpSize / Block::kRowVectors;
        const int row = lane / Block::kRowVectors, vector = lane % Block::kRowVectors;
        uint4 whole[kReads];
#pragma unroll
        for (int i = 0; i < kReads; ++i) {
            const int panel = vector / kPanelVectors * kStagedPanelBytes;
            whole[i] = load_vector(staging + panel + panel_offset(row + i * kReadRows, vector % kPanelVectors));
        }
        const int first = tile_row - lane / kQuad + row;
        Element* to_result = result + first * stride + vector * kVectorElements;
#pragma unroll
        for (int i = 0; i < kReads; ++i) {
            if (first + i * kReadRows < rows) *reinterpret_cast<uint4*>(to_result + i * kReadRows * stride) = whole[i];
        }
    }
};

// ---- Turns: warpgroups issue products one after the other, in a circle.

template <class Shape>
struct Turns {
    using Block = Blocking<Shape>;
    static constexpr bool kUsed = Shape::kLoader && Block::kGroups > 1;
    static constexpr int kBarrierThreads = 2 * kWarpgroupSize;

    // The last warpgroup lets the first one begin.
    static __device__ __forceinline__ void begin(int group) {
        if constexpr (kUsed) {
            if (group == Block::kGroups - 1) announce_some<kBarrierThreads>(Block::kTurnBarrier);
        }
    }
    static __device__ __forceinline__ void await(int group) {
        if constexpr (kUsed) synchronise_some<kBarrierThreads>(Block::kTurnBarrier + group);
    }
    static __device__ __forceinline__ void pass_on(int group) {
        if constexpr (kUsed) announce_some<kBarrierThreads>(Block::kTurnBarrier + (group + 1) % Block::kGroups);
    }
};

}  // namespace atoffer::block
