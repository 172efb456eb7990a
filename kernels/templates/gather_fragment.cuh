// Gathering attention, multiplying warps: one fragment's queries, running softmax and sums in registers.
#pragma once

#include "gather_layout.cuh"

namespace atoffer {

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

// What a lane knows of a step's columns: bits of its two rows, and where the columns lie that it names to ldmatrix.
template <int GROUPS>
struct Step {
    static constexpr int kPairs = (GROUPS + 1) / 2;
    static constexpr unsigned kGroupMask = (1u << kGroupBits) - 1;
    unsigned kept;            // bit 8 g + 4 t + i: whether accumulator i of the t-th 8 columns of group g is kept
    unsigned keys[kPairs];    // 16 bits a group: offset of the lane's vector in K
    unsigned values[kPairs];  // and in V

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

template <class Shape>
struct WarpTile {
    using Tile = Tiling<Shape>;
    using Element = typename Shape::Element;
    using Scores = float[Tile::kScoreTiles][4];
    using OneStep = Step<Tile::kGroups>;
    static constexpr int kBarrier = 2;  // named barrier of the multiplying warps

    int lane, fragment, step_warp;
    int places[2];  // in the item, of the lane's two rows
    int rows[2];    // of the sequence; negative where there is none
    bool fresh;   // nothing has been summed yet
    unsigned query[Tile::kDepthSteps][4];
    float sum[Tile::kSumTiles][4];
    float maximum[2];  // of the lane's rows' scores, unscaled, or a little less
    float base[2];     // the same, scaled; 0 while nothing is kept
    float total[2];    // of their exponentials, this lane's columns only
    int length;         // of the sequence, where it has one
    unsigned in_length; // bits, as of a step, of the lane's rows that lie in it

    __device__ __forceinline__ WarpTile() {
        lane = threadIdx.x % kWarpSize;
        fragment = threadIdx.x / kWarpSize % Tile::kFragments;
        step_warp = threadIdx.x / kWarpSize / Tile::kFragments;
    }

    // Begins a pass over the item in `buffer`.
    __device__ __forceinline__ void start(const Shared<Shape>& shared, int buffer, int pass) {
        fresh = true;
#pragma unroll
        for (int n = 0; n < Tile::kSumTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[n][i] = 0.0f;
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            places[r] = place_of_row(shared, buffer, pass, r * 8 + lane / kQuad);
            rows[r] = shared.rows(buffer)[places[r]];
            maximum[r] = negative_infinity();
            base[r] = total[r] = 0.0f;
        }
        if constexpr (Tile::kPadded) {
            length = *shared.length(buffer);
            in_length = (rows[0] < length ? 0x33333333u : 0) | (rows[1] < length ? 0xccccccccu : 0);
        }
        load_queries(shared, buffer, place_of_row(shared, buffer, pass, lane % kFragmentRows));
    }

    // Place in the item of row `row` of the fragment.
    __device__ __forceinline__ int place_of_row(const Shared<Shape>& shared, int buffer, int pass, int row) const {
        const int at = fragment * kFragmentRows + row;
        return Tile::kPasses == 1 ? at : shared.orders(buffer)[pass * Tile::kTileRows + at];
    }

    static __device__ __forceinline__ bool exists(int row) { return row >= 0; }

    // Lane groups of 8 address: rows 0-7 low channels, rows 8-15 low, rows 0-7 high, rows 8-15 high.
    __device__ __forceinline__ void load_queries(const Shared<Shape>& shared, int buffer, int place) {
        const unsigned from =
            shared_address(shared.queries(buffer)) + swizzled<Tile::kRowVectors>(place, lane / kFragmentRows);
#pragma unroll
        for (int k = 0; k < Tile::kDepthSteps; ++k) load_matrices(query[k], from ^ 2 * k * kVectorBytes);
        if constexpr (Shape::kAddBias) {
            const auto* bias = reinterpret_cast<const unsigned*>(shared.biases(buffer)) + lane % kQuad;
#pragma unroll
            for (int k = 0; k < Tile::kDepthSteps; ++k) {
#pragma unroll
                for (int i = 0; i < 4; ++i) query[k][i] = add_pairs<Element>(query[k][i], bias[k * 8 + i / 2 * 4]);
            }
        }
    }

    // Takes in the chunk in `slot`.
    __device__ __forceinline__ void attend(const Shared<Shape>& shared, int slot, int pass) {
        const unsigned* words =
            shared.step_words(slot) + pass * Tile::kPassWords + fragment * Tile::kBlocks * kBlockWords;
#pragma unroll 1  // code that fits in the nearest instruction cache is worth more than overlapping steps
        for (int number = step_warp; number < Tile::kSteps; number += Tile::kStepWarps) {
            OneStep step = load_step(words, number * Tile::kGroups);
            if constexpr (Tile::kPadded) drop_beyond(step, shared.columns(slot));
            const unsigned any = __reduce_or_sync(kFullWarp, step.kept);
            if (any == 0) {
                if constexpr (Tile::kPadded) continue;
                break;  // columns that are kept come first
            }
            Scores scores;
            float highest[2] = {maximum[0], maximum[1]};
#pragma unroll
            for (int g = 0; g < Tile::kGroups; ++g) {
                if (OneStep::keeps(any, g)) score_group(scores, highest, shared.keys(slot), step, g);
            }
            raise_maximum(highest);
#pragma unroll
            for (int g = 0; g < Tile::kGroups; ++g) {
                if (OneStep::keeps(any, g)) add_group(scores, shared.values(slot), step, g);
            }
        }
    }

    __device__ __forceinline__ OneStep load_step(const unsigned* words, int group) const {
        const unsigned* block = words + group / kBlockGroups * kBlockWords;
        const unsigned* offsets = block + group % kBlockGroups / 2;
        const int shift = group % 2 * 16;
        OneStep step;
        step.kept = block[kOffsetWords + lane] >> group % kBlockGroups * kGroupBits;
        if constexpr (Tile::kGroups < kBlockGroups) step.kept &= (1u << Tile::kGroups * kGroupBits) - 1;
#pragma unroll
        for (int pair = 0; pair < OneStep::kPairs; ++pair) {
            // Lane groups of 8 address, of K: columns 0-7 low channels, 0-7 high, 8-15 low, 8-15 high;
            // and of V: columns 0-7 low channels, 8-15 low, 0-7 high, 8-15 high.
            const unsigned key = offsets[(lane / 16 * 8 + lane % 8) * 2 + pair] >> shift;
            const unsigned value = offsets[lane % 16 * 2 + pair] >> shift;
            step.keys[pair] = key ^ lane / 8 % 2 * kVectorBytes * 0x10001u;
            step.values[pair] = value ^ lane / 16 * kVectorBytes * 0x10001u;
        }
        return step;
    }

    // Clears the bits of rows and columns beyond the sequence's length. Each lane looks at the column of a group that it
    // names to ldmatrix of K, lanes 0-7 at columns 0-7, lanes 16-23 at columns 8-15, and a vote tells the others.
    __device__ __forceinline__ void drop_beyond(OneStep& step, const int* columns) const {
        if (length >= Tile::kSeqLen) return;
        unsigned kept = 0;
#pragma unroll
        for (int g = 0; g < Tile::kGroups; ++g) {
            const int column = columns[OneStep::offset(step.keys, g) / Tile::kRowBytes];
            const unsigned own = __ballot_sync(kFullWarp, column < length) >> lane % kQuad * 2;
            kept |= ((own & 3) * 0x05 | (own >> 16 & 3) * 0x50) << g * kGroupBits;
        }
        step.kept &= kept & in_length;
    }

    // The group's scores, -inf where they are not kept, and the rows' highest.
    __device__ __forceinline__ void score_group(Scores& scores, float (&highest)[2], unsigned keys, const OneStep& step,
                                                int group) const {
        float(&low)[4] = scores[2 * group];
        float(&high)[4] = scores[2 * group + 1];
#pragma unroll
        for (int i = 0; i < 4; ++i) low[i] = high[i] = 0.0f;
        const unsigned from = keys + OneStep::offset(step.keys, group);
#pragma unroll
        for (int k = 0; k < Tile::kDepthSteps; ++k) {
            unsigned key[4];
            load_matrices(key, from ^ 2 * k * kVectorBytes);
            multiply_add<Element>(low, query[k], key[0], key[1]);
            multiply_add<Element>(high, query[k], key[2], key[3]);
        }
        if (!__all_sync(kFullWarp, OneStep::keeps_all(step.kept, group))) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                low[i] = step.kept & 1u << (group * kGroupBits + i) ? low[i] : negative_infinity();
                high[i] = step.kept & 1u << (group * kGroupBits + 4 + i) ? high[i] : negative_infinity();
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) highest[i / 2] = fmaxf(highest[i / 2], fmaxf(low[i], high[i]));
    }

    // Adds the group's exponentials to the totals, and its values, weighted by them, to the sums.
    __device__ __forceinline__ void add_group(const Scores& scores, unsigned values, const OneStep& step, int group) {
        unsigned probabilities[4];
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            float p[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                p[i] = exp2_fast(fmaf(scores[2 * group + t][i], Shape::kScaleLog2, -base[i / 2]));
                total[i / 2] += p[i];
            }
            probabilities[2 * t] = pack_pair<Element>(p[0], p[1]);
            probabilities[2 * t + 1] = pack_pair<Element>(p[2], p[3]);
        }
        const unsigned from = values + OneStep::offset(step.values, group);
#pragma unroll
        for (int n = 0; n < Tile::kSumTiles / 2; ++n) {
            unsigned value[4];
            load_matrices_transposed(value, from ^ 2 * n * kVectorBytes);
            multiply_add<Element>(sum[2 * n], probabilities, value[0], value[1]);
            multiply_add<Element>(sum[2 * n + 1], probabilities, value[2], value[3]);
        }
    }

    // Exponentials are taken relative to `maximum`, which follows the highest score only when it is left far behind:
    // they may reach 2^kSlackLog2, and the lanes of a row seldom have to agree, nor sums to be rescaled. `highest` is
    // what this lane has seen.
    __device__ __forceinline__ void raise_maximum(float (&highest)[2]) {
        constexpr float kSlack = kSlackLog2 / Shape::kScaleLog2;
        const bool behind = highest[0] > maximum[0] + kSlack || highest[1] > maximum[1] + kSlack;
        if (!__any_sync(kFullWarp, behind)) return;
        quad_max(highest);
        rescale(highest);
    }

    // Replaces the maxima; brings totals and sums to the new ones.
    __device__ __forceinline__ void rescale(const float (&highest)[2]) {
        float factor[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            base[r] = highest[r] == negative_infinity() ? 0.0f : highest[r] * Shape::kScaleLog2;
            factor[r] = exp2_fast(fmaf(maximum[r], Shape::kScaleLog2, -base[r]));
            maximum[r] = highest[r];
            total[r] *= factor[r];
        }
        if (!fresh) {
#pragma unroll
            for (int n = 0; n < Tile::kSumTiles; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[n][i] *= factor[i / 2];
            }
        }
        fresh = false;
    }

    // A lane's partial results of step warp `from` (1 and up) lie kWarpSize floats apart.
    __device__ __forceinline__ float* partial(float* partials, int from) const {
        return partials + ((from - 1) * Tile::kFragments + fragment) * Tile::kPartialFloats * kWarpSize + lane;
    }

    // Brings what the warps of a fragment found into the first of them. Every multiplying thread calls it.
    __device__ __forceinline__ void merge_warps(float* partials) {
        synchronise_some<Tile::kThreads>(kBarrier);  // those of the item before have been read
        if (step_warp > 0) {
            float* to = partial(partials, step_warp);
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
        synchronise_some<Tile::kThreads>(kBarrier);
        if (step_warp == 0) {
#pragma unroll
            for (int from = 1; from < Tile::kStepWarps; ++from) add_partial(partial(partials, from));
        }
    }

    __device__ __forceinline__ void add_partial(const float* other) {
        float highest[2], factor[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) highest[r] = fmaxf(maximum[r], other[r * kWarpSize]);
        rescale(highest);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            factor[r] = exp2_fast(fmaf(other[r * kWarpSize], Shape::kScaleLog2, -base[r]));
            total[r] += factor[r] * other[(2 + r) * kWarpSize];
        }
#pragma unroll
        for (int n = 0; n < Tile::kSumTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[n][i] += factor[i / 2] * other[(4 + 4 * n + i) * kWarpSize];
        }
    }

    // ---- Partial results of rows: normalised sums and their weight. A lane's channels of a row lie together.

    // The weight of the lane's row r, as the logarithm to base 2 of its sum of exponentials.
    __device__ __forceinline__ float weight_log(int r) const {
        return total[r] == 0.0f ? negative_infinity() : fmaf(maximum[r], Shape::kScaleLog2, log2f(total[r]));
    }

    __device__ __forceinline__ void store_pairs(uint4* to, int r) const {
        const float factor = total[r] == 0.0f ? 0.0f : 1.0f / total[r];
        unsigned pairs[Tile::kLanePairs];
#pragma unroll
        for (int n = 0; n < Tile::kLanePairs; ++n) {
            pairs[n] = pack_pair<Element>(sum[n][2 * r] * factor, sum[n][2 * r + 1] * factor);
        }
#pragma unroll
        for (int v = 0; v < Tile::kLanePairs / 4; ++v) {
            to[v] = make_uint4(pairs[4 * v], pairs[4 * v + 1], pairs[4 * v + 2], pairs[4 * v + 3]);
        }
    }

    // Between passes, in shared memory. Totals must have been summed over the quad.
    __device__ __forceinline__ void leave_pass(const Shared<Shape>& shared) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (lane % kQuad == 0) shared.pass_logs()[places[r]] = weight_log(r);
            store_pairs(pass_vectors(shared, places[r]), r);
        }
    }

    // Goes on from what the pass before has left: normalised sums whose total is 1 relative to their weight.
    __device__ __forceinline__ void resume_pass(const Shared<Shape>& shared) {
        fresh = false;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float log = shared.pass_logs()[places[r]];
            if (log == negative_infinity()) continue;
            maximum[r] = log * (1.0f / Shape::kScaleLog2);
            base[r] = log;
            total[r] = lane % kQuad == 0 ? 1.0f : 0.0f;
            const uint4* from = pass_vectors(shared, places[r]);
#pragma unroll
            for (int v = 0; v < Tile::kLanePairs / 4; ++v) {
                const uint4 packed = from[v];
                const unsigned pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const Vector<Element, 2> pair = *reinterpret_cast<const Vector<Element, 2>*>(&pairs[i]);
                    sum[4 * v + i][2 * r] = to_float(pair.values[0]);
                    sum[4 * v + i][2 * r + 1] = to_float(pair.values[1]);
                }
            }
        }
    }

    __device__ __forceinline__ uint4* pass_vectors(const Shared<Shape>& shared, int place) const {
        return reinterpret_cast<uint4*>(shared.pass_pairs(place) + lane % kQuad * Tile::kLanePairs);
    }

    // Between blocks, in scratch. Totals must have been summed over the quad.
    __device__ __forceinline__ void store_partial(const Plan<Element>& plan, int slot, int head) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (!exists(rows[r])) continue;
            const int at = scratch_row(slot, head, rows[r]);
            if (lane % kQuad == 0) plan.logs[at] = weight_log(r);
            store_pairs(scratch_vectors(plan, at), r);
        }
        __syncwarp();
        if (lane == 0) count_released(plan.counts + 2 + 2 * head);
    }

    // Waits until the head's partial items are done. The last to have waited sets both counts back.
    __device__ __forceinline__ void wait_partials(const Plan<Element>& plan, int head, int waiting) const {
        constexpr int kPartialWarps = Shape::kPartialItems * Tile::kFragments;
        if (lane == 0) {
            int* done = plan.counts + 2 + 2 * head;
            while (load_acquired(done) < kPartialWarps) continue;
            if (atomicAdd(done + 1, 1) == waiting * Tile::kFragments - 1) done[0] = done[1] = 0;
        }
        __syncwarp();
    }

    // Takes in a slot, past the first cache: other blocks wrote it. Totals must have been summed over the quad.
    __device__ __forceinline__ void merge_slot(const Plan<Element>& plan, int slot, int head) {
        float logs[2], highest[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            logs[r] = exists(rows[r]) ? __ldcg(plan.logs + scratch_row(slot, head, rows[r])) : negative_infinity();
            highest[r] = fmaxf(maximum[r], logs[r] * (1.0f / Shape::kScaleLog2));
        }
        rescale(highest);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (logs[r] == negative_infinity()) continue;
            const float weight = exp2_fast(logs[r] - base[r]);
            total[r] += weight;
            const uint4* from = scratch_vectors(plan, scratch_row(slot, head, rows[r]));
#pragma unroll
            for (int v = 0; v < Tile::kLanePairs / 4; ++v) {
                const uint4 packed = __ldcg(from + v);
                const unsigned pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const Vector<Element, 2> pair = *reinterpret_cast<const Vector<Element, 2>*>(&pairs[i]);
                    float* to = sum[4 * v + i] + 2 * r;
                    to[0] = fmaf(weight, to_float(pair.values[0]), to[0]);
                    to[1] = fmaf(weight, to_float(pair.values[1]), to[1]);
                }
            }
        }
    }

    static __device__ __forceinline__ int scratch_row(int slot, int head, int row) {
        return (slot * Shape::kBatch * Tile::kHeads + head) * Tile::kSeqLen + row;
    }

    __device__ __forceinline__ uint4* scratch_vectors(const Plan<Element>& plan, int at) const {
        auto* pairs = reinterpret_cast<unsigned*>(plan.sums + at * Tile::kChannels) + lane % kQuad * Tile::kLanePairs;
        return reinterpret_cast<uint4*>(pairs);
    }

    // Divides by the totals, adds the bias of the values and writes whole 16-byte vectors by way of `staging`: the 16
    // rows of shared memory that held the warp's queries. A row that keeps nothing has a total of 0 and becomes zeros, whatever its sum is.
    __device__ __forceinline__ void store(Element* result, int result_stride, const Element* value_bias, char* staging) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const bool empty = total[r] == 0.0f;
            const float factor = 1.0f / total[r];
#pragma unroll
            for (int n = 0; n < Tile::kSumTiles; ++n) {
                float low = sum[n][2 * r] * factor, high = sum[n][2 * r + 1] * factor;
                if constexpr (Shape::kAddBias) {
                    const Element* bias = value_bias + n * kFragmentColumns + lane % kQuad * 2;
                    low += to_float(bias[0]);
                    high += to_float(bias[1]);
                }
                const int at = swizzled<Tile::kRowVectors>(r * 8 + lane / kQuad, n) + lane % kQuad * 4;
                *reinterpret_cast<unsigned*>(staging + at) =
                    empty ? 0 : pack_pair<Element>(low, high);
            }
        }
        __syncwarp();
#pragma unroll
        for (int first = 0; first < kFragmentRows * Tile::kRowVectors; first += kWarpSize) {
            const int at = first + lane, place = at / Tile::kRowVectors, vector = at % Tile::kRowVectors;
            // Lane 4 r holds the number of row r, and of row r + 8.
            const int low = __shfl_sync(kFullWarp, rows[0], place % 8 * kQuad);
            const int high = __shfl_sync(kFullWarp, rows[1], place % 8 * kQuad);
            const int row = place < 8 ? low : high;
            if (exists(row) && (Tile::kEven || vector * kVectorElements < Tile::kHeadDim)) {
                *reinterpret_cast<uint4*>(result + row * result_stride + vector * kVectorElements) =
                    *reinterpret_cast<const uint4*>(staging + swizzled<Tile::kRowVectors>(place, vector));
            }
        }
    }
};

}  // namespace atoffer
