// Block attention, products: one warpgroup's queries, running softmax and sums in registers.
#pragma once

#include "block_layout.cuh"
#include "pairs.cuh"

namespace atoffer {

// Transposes 4 x 4 registers over the four lanes of a quad: afterwards lane c holds in x[i] what lane i held in x[c].
// A vector of 8 elements is 4 pairs: this turns whole vectors, one a lane, into the pairs that products deal in, and
// back.
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

    int lane, group, tile_row;  // tile_row: of this lane's first row; its second is 8 further
    unsigned query[kDepthSteps][4];
    unsigned shared_queries;  // address
    float scores[Block::kColumns / 2];
    unsigned probabilities[kColumnSteps][4];
    float sum[Block::kHeadDim / 2];
    float maximum[2];  // of the rows' scores, unscaled
    float total[2];    // of their exponentials, this lane's columns only

    __device__ __forceinline__ void start(unsigned base, int warpgroup) {
        lane = threadIdx.x % kWarpSize;
        group = warpgroup;
        tile_row = group * kWarpgroupRows + threadIdx.x % kWarpgroupSize / kWarpSize * 16 + lane / kQuad;
        shared_queries = base + group * Block::kPanels * Block::kQueryPanelBytes;
#pragma unroll
        for (int i = 0; i < Block::kHeadDim / 2; ++i) sum[i] = 0.0f;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            maximum[r] = negative_infinity();
            total[r] = 0.0f;
        }
    }

    // Reads whole vectors, adds the bias, and brings them where products look for them: into shared memory, or as pairs
    // into registers. Rows beyond the sequence are zeros. `queries` points at the tile's first query of this head.
    __device__ __forceinline__ void load_queries(const Element* queries, const Element* bias, int rows) {
#pragma unroll
        for (int g = 0; g < kVectorGroups; ++g) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int row = tile_row + r * 8, vector = g * kQuad + lane % kQuad;
                uint4 loaded = make_uint4(0, 0, 0, 0);
                if (row < rows) {
                    const Element* from = queries + row * Block::kTokenStride + vector * kVectorElements;
                    loaded = *reinterpret_cast<const uint4*>(from);
                    if constexpr (Shape::kAddBias) {
                        loaded = biased(loaded, *reinterpret_cast<const uint4*>(bias + vector * kVectorElements));
                    }
                }
                place_queries(loaded, g, r);
            }
        }
        if constexpr (Shape::kSharedQueries) {
            fence_shared();
            synchronise_some<kWarpgroupSize>(1 + Block::kGroups + group);
        }
    }

    static __device__ __forceinline__ uint4 biased(uint4 x, uint4 bias) {
        return make_uint4(add_pairs<Element>(x.x, bias.x), add_pairs<Element>(x.y, bias.y),
                          add_pairs<Element>(x.z, bias.z), add_pairs<Element>(x.w, bias.w));
    }

    __device__ __forceinline__ void place_queries(uint4 loaded, int g, int r) {
        if constexpr (Shape::kSharedQueries) {
            constexpr int kPanelVectors = kPanelElements / kVectorElements;
            const int row = tile_row % kWarpgroupRows + r * 8, vector = g * kQuad + lane % kQuad;
            const unsigned to = shared_queries + vector / kPanelVectors * Block::kQueryPanelBytes +
                                panel_offset(row, vector % kPanelVectors);
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(loaded.x), "r"(loaded.y),
                         "r"(loaded.z), "r"(loaded.w)
                         : "memory");
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
#pragma unroll
        for (int k = 0; k < kDepthSteps; ++k) {
            const unsigned within = k % kPanelSteps * kStepBytes;
            const auto b = panel_descriptor(keys + k / kPanelSteps * Block::kPanelBytes + within, 16);
            if constexpr (Shape::kSharedQueries) {
                const unsigned a = shared_queries + k / kPanelSteps * Block::kQueryPanelBytes + within;
                issue_product<Element, Block::kColumns, false>(scores, panel_descriptor(a, 16), b, k > 0);
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
#pragma unroll
        for (int k = 0; k < kColumnSteps; ++k) {
            const auto b = panel_descriptor(values + k * kColumnStepBytes, Block::kPanelBytes);
            issue_product<Element, Block::kHeadDim, true>(sum, probabilities[k], b, true);
        }
        commit_products();
    }

    // Scores that the bitmap does not keep become -inf.
    __device__ __forceinline__ void mask_scores(unsigned bitmap) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const unsigned row_words = bitmap + (tile_row + r * 8) * Block::kRowWords * 4;
#pragma unroll
            for (int w = 0; w < Block::kRowWords; ++w) {
                unsigned word;
                asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(row_words + w * 4) : "memory");
                word >>= lane % kQuad * 2;
#pragma unroll
                for (int bit = 0; bit < kWordBits; bit += 8) {
                    float* pair = scores + (w * kWordBits + bit) / 2 + 2 * r;
                    pair[0] = word >> bit & 1 ? pair[0] : negative_infinity();
                    pair[1] = word >> (bit + 1) & 1 ? pair[1] : negative_infinity();
                }
            }
        }
    }

    // Scores become unnormalised probabilities in float32, and total is brought to the new maximum. `factor` receives
    // what brings sum to it.
    __device__ __forceinline__ void soften(float (&factor)[2]) {
        float base[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float highest[2] = {maximum[r], scores[2 * r]};  // two chains of comparisons
#pragma unroll
            for (int i = 2 * r; i < Block::kColumns / 2; i += 4) {
                highest[0] = fmaxf(highest[0], scores[i]);
                highest[1] = fmaxf(highest[1], scores[i + 1]);
            }
            float top = fmaxf(highest[0], highest[1]);
            top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 1));
            top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 2));
            base[r] = top == negative_infinity() ? 0.0f : top * Shape::kScaleLog2;
            factor[r] = exp2_fast(fmaf(maximum[r], Shape::kScaleLog2, -base[r]));
            maximum[r] = top;
        }
        float added[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}};
#pragma unroll
        for (int i = 0; i < Block::kColumns / 2; ++i) {
            scores[i] = exp2_fast(fmaf(scores[i], Shape::kScaleLog2, -base[i / 2 % 2]));
            added[i / 2 % 2][i % 2] += scores[i];
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) total[r] = fmaf(total[r], factor[r], added[r][0] + added[r][1]);
    }

    // Makes the compiler compute the probabilities before what follows, a wait for products that run meanwhile: it
    // would take the wait for free and do it first. No total is negative, and nothing is stored.
    __device__ __forceinline__ void finish_softmax() const {
        asm volatile(
            "{\n\t.reg .pred never;\n\tsetp.lt.f32 never, %0, 0f00000000;\n\t"
            "@never st.shared.f32 [%1], %0;\n\t}" ::"f"(total[0] + total[1]),
            "r"(shared_queries)
            : "memory");
    }

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

    // Divides by the totals, adds the bias of the values and writes whole vectors. A row that keeps nothing has a total
    // of 0 and becomes zeros. `bias` is that of this head's values; `rows` are left in the sequence.
    __device__ __forceinline__ void store(Element* result, int stride, const Element* bias, int rows) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            total[r] += __shfl_xor_sync(kFullWarp, total[r], 1);
            total[r] += __shfl_xor_sync(kFullWarp, total[r], 2);
            const bool empty = total[r] == 0.0f;
            const float factor = empty ? 0.0f : 1.0f / total[r];
            const int row = tile_row + r * 8;
#pragma unroll
            for (int g = 0; g < kVectorGroups; ++g) {
                unsigned pairs[kQuad];
#pragma unroll
                for (int i = 0; i < kQuad; ++i) {
                    const int vector = g * kQuad + i;
                    float offset[2] = {0.0f, 0.0f};
                    if constexpr (Shape::kAddBias) {
                        load_floats<Element, 2>(offset, bias + vector * kVectorElements + lane % kQuad * 2);
                    }
                    const float low = fmaf(sum[4 * vector + 2 * r], factor, offset[0]);
                    const float high = fmaf(sum[4 * vector + 2 * r + 1], factor, offset[1]);
                    pairs[i] = pack_pair<Element>(empty ? 0.0f : low, empty ? 0.0f : high);
                }
                transpose_quad(pairs);  // now vector 4g + lane % 4
                if (row < rows) {
                    Element* to = result + row * stride + (g * kQuad + lane % kQuad) * kVectorElements;
                    *reinterpret_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
                }
            }
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
            if (group == Block::kGroups - 1) announce_some<kBarrierThreads>(1);
        }
    }
    static __device__ __forceinline__ void await(int group) {
        if constexpr (kUsed) synchronise_some<kBarrierThreads>(1 + group);
    }
    static __device__ __forceinline__ void pass_on(int group) {
        if constexpr (kUsed) announce_some<kBarrierThreads>(1 + (group + 1) % Block::kGroups);
    }
};

}  // namespace atoffer
