// Gathering attention: the products of a fragment with a group of columns, which depend on the elements' format.
//
// 16-bit elements: mma of depth 16. float32: mma of TF32, depth 8, three times. A number x is split into its nearest
// TF32 number and the rest, x = high + low, and a * b = low * high + high * low + high * high. Left out are low * low
// and the last bit of some rests: at most 2^-21 of a product, now too much, now too little. An infinity becomes NaN.
//
// An mma cuts off bits of its sum that do not fit, always towards zero. So scores add small products apart from large
// ones, and both scores and values start again from zero after a few: instructions that round to nearest add those up.
#pragma once

#include "gather_layout.cuh"
#include "pairs.cuh"
#include "tf32.cuh"

namespace atoffer::gather {

// What a lane knows of a step's columns: bits of its two rows, and where the columns lie that it reads.
template <int GROUPS, int VALUE_COLUMNS>
struct Step {
    static constexpr int kPairs = (GROUPS + 1) / 2;
    static constexpr int kValueColumns = VALUE_COLUMNS;
    static constexpr unsigned kGroupMask = (1u << kGroupBits) - 1;
    unsigned kept;          // bit 8 g + 4 t + i: whether accumulator i of the t-th 8 columns of group g is kept
    unsigned keys[kPairs];  // 16 bits a group: offset in K of the vector that the lane names to ldmatrix,
    unsigned values[kValueColumns][kPairs];  // and in V of those that it names or reads

    // Columns that are kept fill a fragment's groups from the front: one that no row keeps is not multiplied.
    static __device__ __forceinline__ bool keeps(unsigned any, int group) {
        return (any & kGroupMask << group * kGroupBits) != 0;
    }

    static __device__ __forceinline__ bool keeps_all(unsigned kept, int group) {
        return (~kept & kGroupMask << group * kGroupBits) == 0;
    }

    static __device__ __forceinline__ unsigned offset(const unsigned (&offsets)[kPairs], int group) {
        return group % 2 == 0 ? offsets[group / 2] & 0xffff : offsets[group / 2] >> 16;
    }
};

// 16-bit elements. Tile n of the sums is channels 8n to 8n + 7.
template <class Shape, class Element = typename Shape::Element>
struct Products {
    using Tile = Tiling<Shape>;
    using Queries = unsigned[Tile::kDepthSteps][4];
    using Sums = float[Tile::kSumTiles][4];
    using OneStep = Step<Tile::kGroups, 1>;

    // Which vector of which column of a group a lane names. Lane groups of 8 name columns 0-7 low channels, 8-15 low,
    // 0-7 high, 8-15 high.
    static __device__ __forceinline__ int value_column(int lane, int) { return lane % 16; }
    static __device__ __forceinline__ int value_vector(int lane) { return lane / 16; }

    // What an exponential counts in the total.
    static __device__ __forceinline__ float weight(float p) { return p; }

    static __device__ __forceinline__ unsigned add_bias(unsigned query, unsigned bias) {
        return add_pairs<Element>(query, bias);
    }

    // The scores of the group's first and last 8 columns; `keys` is the address of the lane's first vector.
    static __device__ __forceinline__ void score(float (&low)[4], float (&high)[4], const Queries& query,
                                                 unsigned keys) {
#pragma unroll
        for (int i = 0; i < 4; ++i) low[i] = high[i] = 0.0f;
#pragma unroll
        for (int k = 0; k < Tile::kDepthSteps; ++k) {
            unsigned key[4];
            load_matrices(key, at_depth(keys, k));
            multiply_add<Element>(low, query[k], key[0], key[1]);
            multiply_add<Element>(high, query[k], key[2], key[3]);
        }
    }

    // Adds the values of the group's columns, weighted by the lane's exponentials of its first and last 8.
    static __device__ __forceinline__ void add(Sums& sum, const float (&p)[2][4], unsigned values, const OneStep& step,
                                               int group) {
        unsigned probabilities[4];
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            probabilities[2 * t] = pack_pair<Element>(p[t][0], p[t][1]);
            probabilities[2 * t + 1] = pack_pair<Element>(p[t][2], p[t][3]);
        }
        const unsigned from = values + OneStep::offset(step.values[0], group);
#pragma unroll
        for (int n = 0; n < Tile::kSumTiles / 2; ++n) {
            unsigned value[4];
            load_matrices_transposed(value, at_depth(from, n));
            multiply_add<Element>(sum[2 * n], probabilities, value[0], value[1]);
            multiply_add<Element>(sum[2 * n + 1], probabilities, value[2], value[3]);
        }
    }

    static __device__ __forceinline__ uint4 pack(const float (&values)[8]) {
        return make_uint4(pack_pair<Element>(values[0], values[1]), pack_pair<Element>(values[2], values[3]),
                          pack_pair<Element>(values[4], values[5]), pack_pair<Element>(values[6], values[7]));
    }

    static __device__ __forceinline__ void unpack(float (&values)[8], const uint4& vector) {
        const unsigned pairs[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const Vector<Element, 2> pair = *reinterpret_cast<const Vector<Element, 2>*>(&pairs[i]);
            values[2 * i] = to_float(pair.values[0]);
            values[2 * i + 1] = to_float(pair.values[1]);
        }
    }

    // Writes the fragment's results to the 16 rows at `staging`: sums divided by the rows' totals, or zeros; zeros
    // in channels beyond the head's, too, which nobody stores.
    static __device__ __forceinline__ void stage(char* staging, int lane, const Sums& sum, const float (&total)[2],
                                                 const Element* bias) {
        const unsigned to = shared_address(staging) +
                            swizzled<Tile::kRowVectors>(lane % kFragmentRows, lane / kFragmentRows);
        float factor[2];
        unsigned keeps[2];  // all bits, or none of a row that keeps nothing, whatever its sums are
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            factor[r] = __fdividef(1.0f, total[r]);
            keeps[r] = total[r] == 0.0f ? 0 : ~0u;
        }
#pragma unroll
        for (int n = 0; n < Tile::kSumTiles; n += 2) {
            unsigned pairs[4];  // of tile n: rows 0 to 7, 8 to 15; of tile n + 1 the same
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int tile = n + i / 2, r = i % 2;
                float low = sum[tile][2 * r] * factor[r], high = sum[tile][2 * r + 1] * factor[r];
                if constexpr (Shape::kAddBias) {
                    const Element* two = bias + tile * kMmaColumns + lane % kQuad * 2;
                    low += to_float(two[0]);
                    high += to_float(two[1]);
                }
                const bool exists = tile * kMmaColumns < Tile::kHeadDim;
                pairs[i] = exists ? pack_pair<Element>(low, high) & keeps[r] : 0;
            }
            store_matrices(at_depth(to, n / 2), pairs);
        }
    }
};

// float32. Sums lie so that a lane reads values as whole vectors: tile 4 b + j of the sums is channels 32 b + j,
// 32 b + j + 4 and so on, eight of them.
template <class Shape>
struct Products<Shape, float> {
    using Tile = Tiling<Shape>;
    using Queries = unsigned[Tile::kDepthSteps][4];
    using Sums = float[Tile::kSumTiles][4];
    using OneStep = Step<Tile::kGroups, 4>;
    static constexpr int kBlockTiles = 4, kBlockSteps = 4;
    static constexpr int kBlockBytes = kBlockTiles * kMmaColumns * sizeof(float);

    struct Split {
        unsigned high[4], low[4];

        __device__ __forceinline__ Split(float a, float b, float c, float d) {
            const float values[4] = {a, b, c, d};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                high[i] = (__float_as_uint(values[i]) + 0x1000u) & 0xffffe000u;  // 13 bits rounded away
                low[i] = __float_as_uint(values[i] - __uint_as_float(high[i]));
            }
        }

        __device__ __forceinline__ explicit Split(const unsigned (&words)[4])
            : Split(__uint_as_float(words[0]), __uint_as_float(words[1]), __uint_as_float(words[2]),
                    __uint_as_float(words[3])) {}

        __device__ __forceinline__ explicit Split(float4 values) : Split(values.x, values.y, values.z, values.w) {}
    };

    // Column 2c of 8 is number c in the depth of the product, column 2c + 1 number c + 4: so a lane has the
    // exponentials that it must give. It reads those columns of both eights, and vector lane / 4 of each block.
    static __device__ __forceinline__ int value_column(int lane, int place) {
        return place / 2 * 8 + lane % kQuad * 2 + place % 2;
    }
    static __device__ __forceinline__ int value_vector(int lane) { return lane / kQuad; }

    // An exponential without its last bit: the rest is a TF32 number then, and weights add up to exactly their total.
    static __device__ __forceinline__ float weight(float p) { return __uint_as_float(__float_as_uint(p) & ~1u); }

    static __device__ __forceinline__ unsigned add_bias(unsigned query, unsigned bias) {
        return __float_as_uint(__uint_as_float(query) + __uint_as_float(bias));
    }

    static __device__ __forceinline__ void score(float (&low)[4], float (&high)[4], const Queries& query,
                                                 unsigned keys) {
        float low_rest[4] = {}, high_rest[4] = {};
#pragma unroll
        for (int block = 0; block < Tile::kDepthSteps / kBlockSteps; ++block) {
            float low_part[4] = {}, high_part[4] = {};
#pragma unroll
            for (int k = block * kBlockSteps; k < (block + 1) * kBlockSteps; ++k) {
                unsigned key_words[4], query_words[4];
                load_matrices(key_words, at_depth(keys, k));
#pragma unroll
                for (int i = 0; i < 4; ++i) query_words[i] = opaque(query[k][i]);
                const Split key(key_words), rows(query_words);
                multiply_add_tf32(low_rest, rows.low, key.high[0], key.high[1]);
                multiply_add_tf32(high_rest, rows.low, key.high[2], key.high[3]);
                multiply_add_tf32(low_part, rows.high, key.high[0], key.high[1]);
                multiply_add_tf32(high_part, rows.high, key.high[2], key.high[3]);
                multiply_add_tf32(low_rest, rows.high, key.low[0], key.low[1]);
                multiply_add_tf32(high_rest, rows.high, key.low[2], key.low[3]);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                low[i] = block == 0 ? low_part[i] : low[i] + low_part[i];
                high[i] = block == 0 ? high_part[i] : high[i] + high_part[i];
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            low[i] += low_rest[i];
            high[i] += high_rest[i];
        }
    }

    static __device__ __forceinline__ void add(Sums& sum, const float (&p)[2][4], unsigned values, const OneStep& step,
                                               int group) {
        const Split probabilities[2] = {{p[0][0], p[0][2], p[0][1], p[0][3]}, {p[1][0], p[1][2], p[1][1], p[1][3]}};
#pragma unroll
        for (int block = 0; block < Tile::kSumTiles / kBlockTiles; ++block) {
            float fresh[kBlockTiles][4] = {};
#pragma unroll
            for (int t = 0; t < 2; ++t) {
                const unsigned from = values + block * kBlockBytes;
                const Split first(load_floats(from + OneStep::offset(step.values[2 * t], group)));
                const Split second(load_floats(from + OneStep::offset(step.values[2 * t + 1], group)));
#pragma unroll
                for (int j = 0; j < kBlockTiles; ++j) {
                    multiply_add_tf32(fresh[j], probabilities[t].low, first.high[j], second.high[j]);
                    multiply_add_tf32(fresh[j], probabilities[t].high, first.low[j], second.low[j]);
                    multiply_add_tf32(fresh[j], probabilities[t].high, first.high[j], second.high[j]);
                }
            }
#pragma unroll
            for (int j = 0; j < kBlockTiles; ++j) {
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[block * kBlockTiles + j][i] += fresh[j][i];
            }
        }
    }

    static __device__ __forceinline__ uint4 pack(const float (&values)[4]) {
        return make_uint4(__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]),
                          __float_as_uint(values[3]));
    }

    static __device__ __forceinline__ void unpack(float (&values)[4], const uint4& vector) {
        values[0] = __uint_as_float(vector.x);
        values[1] = __uint_as_float(vector.y);
        values[2] = __uint_as_float(vector.z);
        values[3] = __uint_as_float(vector.w);
    }

    // As with 16-bit elements. The lane has 8 neighbouring channels of each block.
    static __device__ __forceinline__ void stage(char* staging, int lane, const Sums& sum, const float (&total)[2],
                                                 const float* bias) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = r * 8 + lane / kQuad;
            const float factor = 1.0f / total[r];
#pragma unroll
            for (int n = 0; n < Tile::kSumTiles / 2; ++n) {
                const int vector = n / 2 * 2 * kQuad + lane % kQuad * 2 + n % 2;
                float values[4], biases[4] = {};
                if constexpr (Shape::kAddBias) unpack(biases, reinterpret_cast<const uint4*>(bias)[vector]);
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float one = sum[n / 2 * kBlockTiles + j][2 * r + n % 2], nearly = one * factor;
                    const float quotient = fmaf(fmaf(-nearly, total[r], one), factor, nearly);  // rounded once
                    const bool exists = vector * Tile::kVectorElements < Tile::kHeadDim;
                    values[j] = total[r] == 0.0f || !exists ? 0.0f : quotient + biases[j];
                }
                *reinterpret_cast<uint4*>(staging + swizzled<Tile::kRowVectors>(row, vector)) = pack(values);
            }
        }
    }
};

}  // namespace atoffer::gather
