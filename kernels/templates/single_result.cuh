// Attention of all columns at once: the result. What the warps of a fragment found, then what the ranks of a cluster did,
// added up.
#pragma once

#include "barriers.cuh"
#include "cluster.cuh"
#include "pairs.cuh"
#include "single_layout.cuh"

namespace atoffer::single {

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

    __device__ __forceinline__ void await_given() const { wait_phase_of_cluster(barrier(), 0); }

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

}  // namespace atoffer::single
