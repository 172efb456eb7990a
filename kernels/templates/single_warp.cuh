// Attention of all columns at once: products, a warp's steps.
#pragma once

#include "pairs.cuh"
#include "single_layout.cuh"

namespace atoffer::single {

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

}  // namespace atoffer::single
