// Gathering attention, multiplying warps: one fragment's queries, running softmax and sums in registers.
#pragma once

#include "gather_products.cuh"

namespace atoffer::gather {

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

template <class Shape>
struct WarpTile {
    using Tile = Tiling<Shape>;
    using Element = typename Shape::Element;
    using Format = Products<Shape>;
    using OneStep = typename Format::OneStep;
    using Scores = float[Tile::kScoreTiles][4];
    static constexpr int kBarrier = 2;       // named barrier of the multiplying warps
    static constexpr int kShareBarrier = 3;  // and of the first of each fragment

    int lane, fragment, step_warp;
    int places[2];  // in the item, of the lane's two rows
    int rows[2];    // of the sequence; negative where there is none
    bool fresh;   // nothing has been summed yet
    typename Format::Queries query;
    typename Format::Sums sum;
    float maximum[2];  // of the lane's rows' scores, unscaled, or a little less; after a merge up to their log-sum-exp
    float base[2];     // the same, scaled: exponentials are relative to 2^base; kNoBase while nothing is kept
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
            base[r] = kNoBase;
            total[r] = 0.0f;
        }
        if constexpr (Tile::kPadded) {
            length = *shared.length(buffer);
            in_length = (rows[0] < length ? 0x33333333u : 0) | (rows[1] < length ? 0xccccccccu : 0);
        }
        if constexpr (Tile::kPacked) drop_rows_beyond();
    }

    // Place in the item of row `row` of the fragment.
    __device__ __forceinline__ int place_of_row(const Shared<Shape>& shared, int buffer, int pass, int row) const {
        const int at = fragment * kFragmentRows + row;
        return Tile::kPasses == 1 ? at : shared.orders(buffer)[pass * Tile::kTileRows + at];
    }

    static __device__ __forceinline__ bool exists(int row) { return row >= 0; }

    // Where sequences are packed, rows beyond the length are the next sequence's.
    __device__ __forceinline__ void drop_rows_beyond() {
#pragma unroll
        for (int r = 0; r < 2; ++r) rows[r] = rows[r] < length ? rows[r] : -1;
    }

    // Lane groups of 8 address: rows 0-7 low channels, rows 8-15 low, rows 0-7 high, rows 8-15 high.
    __device__ __forceinline__ void load_queries(const Shared<Shape>& shared, int buffer, int pass) {
        const int place = place_of_row(shared, buffer, pass, lane % kFragmentRows);
        const unsigned from =
            shared_address(shared.queries(buffer)) + swizzled<Tile::kRowVectors>(place, lane / kFragmentRows);
#pragma unroll
        for (int k = 0; k < Tile::kDepthSteps; ++k) load_matrices(query[k], at_depth(from, k));
        if constexpr (Shape::kAddBias) {
            const auto* bias = reinterpret_cast<const unsigned*>(shared.biases(buffer)) + lane % kQuad;
#pragma unroll
            for (int k = 0; k < Tile::kDepthSteps; ++k) {
#pragma unroll
                for (int i = 0; i < 4; ++i) query[k][i] = Format::add_bias(query[k][i], bias[k * 8 + i / 2 * 4]);
            }
        }
    }

    // Takes in the chunk in `stage`.
    __device__ __forceinline__ void attend(const Shared<Shape>& shared, int stage, int pass) {
        const unsigned* words =
            shared.step_words(stage) + pass * Tile::kPassWords + fragment * Tile::kBlocks * kBlockWords;
#pragma unroll 1  // code that fits in the nearest instruction cache is worth more than overlapping steps
        for (int number = step_warp; number < Tile::kSteps; number += Tile::kStepWarps) {
            OneStep step = load_step(words, number * Tile::kGroups);
            if constexpr (Tile::kPadded) drop_beyond(step, shared.columns(stage));
            const unsigned any = __reduce_or_sync(kFullWarp, step.kept);
            if (any == 0) {
                if constexpr (Tile::kPadded) continue;
                break;  // columns that are kept come first
            }
            Scores scores;
            float highest[2] = {maximum[0], maximum[1]};
#pragma unroll
            for (int g = 0; g < Tile::kGroups; ++g) {
                if (OneStep::keeps(any, g)) score_group(scores, highest, shared.keys(stage), step, g);
            }
            raise_maximum(highest);
#pragma unroll
            for (int g = 0; g < Tile::kGroups; ++g) {
                if (OneStep::keeps(any, g)) add_group(scores, shared.values(stage), step, g);
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
            // Lane groups of 8 address, of K: columns 0-7 low channels, 0-7 high, 8-15 low, 8-15 high.
            const unsigned key = offsets[(lane / 16 * 8 + lane % 8) * 2 + pair] >> shift;
            step.keys[pair] = key ^ lane / 8 % 2 * kVectorBytes * 0x10001u;
#pragma unroll
            for (int i = 0; i < OneStep::kValueColumns; ++i) {
                const unsigned value = offsets[Format::value_column(lane, i) * 2 + pair] >> shift;
                step.values[i][pair] = value ^ Format::value_vector(lane) * kVectorBytes * 0x10001u;
            }
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
        Format::score(low, high, query, keys + OneStep::offset(step.keys, group));
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
        float probabilities[2][4];
#pragma unroll
        for (int t = 0; t < 2; ++t) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float scaled = fmaf(scores[2 * group + t][i], Shape::kScaleLog2, -base[i / 2]);
                probabilities[t][i] = Format::weight(exp2_fast(scaled));
                total[i / 2] += probabilities[t][i];
            }
        }
        Format::add(sum, probabilities, values, step, group);
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
            const float old = base[r];
            base[r] = highest[r] == negative_infinity() ? kNoBase : highest[r] * Shape::kScaleLog2;
            factor[r] = exp2_fast(old - base[r]);
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
                to[r * kWarpSize] = base[r];
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
        for (int r = 0; r < 2; ++r) highest[r] = fmaxf(maximum[r], unscaled(other[r * kWarpSize]));
        rescale(highest);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            factor[r] = exp2_fast(other[r * kWarpSize] - base[r]);
            total[r] += factor[r] * other[(2 + r) * kWarpSize];
        }
#pragma unroll
        for (int n = 0; n < Tile::kSumTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[n][i] += factor[i / 2] * other[(4 + 4 * n + i) * kWarpSize];
        }
    }

    // The score whose scaled value is `scaled`; -inf for kNoBase.
    static __device__ __forceinline__ float unscaled(float scaled) { return scaled * (1.0f / Shape::kScaleLog2); }

    // ---- Partial results of rows: sums and their weight. A lane's channels of a row lie together.

    // The weight of the lane's row r.
    __device__ __forceinline__ Weight<Element> weight(int r) const {
        if constexpr (Tile::kExact) {
            return {total[r] == 0.0f ? negative_infinity() : base[r], total[r]};
        } else {
            return {total[r] == 0.0f ? negative_infinity() : base[r] + __log2f(total[r])};
        }
    }

    // Where number `i` of vector `v` of what the lane has of row r belongs.
    __device__ __forceinline__ float& sum_at(int v, int i, int r) {
        return sum[(v * Tile::kVectorElements + i) / 2][2 * r + i % 2];
    }

    // `place(v)` says where vector v goes.
    template <class Place>
    __device__ __forceinline__ void store_sums(int r, Place place) {
        const float factor = Tile::kExact ? 1.0f : total[r] == 0.0f ? 0.0f : __fdividef(1.0f, total[r]);
#pragma unroll
        for (int v = 0; v < Tile::kLaneVectors; ++v) {
            float values[Tile::kVectorElements];
#pragma unroll
            for (int i = 0; i < Tile::kVectorElements; ++i) values[i] = sum_at(v, i, r) * factor;
            *place(v) = Format::pack(values);
        }
    }

    // In shared memory, in the place of the rows' queries. Totals must have been summed over the quad.
    __device__ __forceinline__ void leave(const Shared<Shape>& shared, int buffer, Weight<Element>* weights) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (lane % kQuad == 0) weights[places[r]] = weight(r);
            store_sums(r, [&](int v) { return pass_vector(shared, buffer, places[r], v); });
        }
    }

    // Between passes.
    __device__ __forceinline__ void leave_pass(const Shared<Shape>& shared, int buffer) {
        leave(shared, buffer, shared.result_weights());
    }

    // Goes on from what the pass before has left.
    __device__ __forceinline__ void resume_pass(const Shared<Shape>& shared, int buffer) {
        fresh = false;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const Weight<Element> weight = shared.result_weights()[places[r]];
            if (weight.log == negative_infinity()) continue;
            maximum[r] = unscaled(weight.log);
            base[r] = weight.log;
            total[r] = lane % kQuad == 0 ? weight.total : 0.0f;
#pragma unroll
            for (int v = 0; v < Tile::kLaneVectors; ++v) {
                float values[Tile::kVectorElements];
                Format::unpack(values, *pass_vector(shared, buffer, places[r], v));
#pragma unroll
                for (int i = 0; i < Tile::kVectorElements; ++i) sum_at(v, i, r) = values[i];
            }
        }
    }

    // Vector v of what the lane has of a row, in shared memory: what was left in place `place`, and of a shelf.
    __device__ __forceinline__ uint4* pass_vector(const Shared<Shape>& shared, int buffer, int place, int v) const {
        return shared.pass_vector(buffer, place, lane % kQuad * Tile::kLaneVectors + v);
    }
    __device__ __forceinline__ uint4* shelf_vector(const Shared<Shape>& shared, int r, int v) const {
        return shared.shelf_vector(places[r], lane % kQuad * Tile::kLaneVectors + v);
    }

    // Between blocks, in scratch. Totals must have been summed over the quad.
    __device__ __forceinline__ void store_partial(const Plan<Element>& plan, int shelf, int head) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (!exists(rows[r])) continue;
            const int at = scratch_row<Shape>(shelf, head, rows[r]);
            if (lane % kQuad == 0) plan.weights[at] = weight(r);
            uint4* to = scratch_vectors(plan, at);
            store_sums(r, [to](int v) { return to + v; });
        }
        __syncwarp();  // whoever counts the item speaks for all lanes
    }

    // Takes in the shelf in shared memory.
    __device__ __forceinline__ void merge_shelf(const Shared<Shape>& shared) {
        merge([&](int r) { return shelf_weight(shared, r); }, [&](int r, int v) { return shelf_vector(shared, r, v); });
    }

    // Brings what the fragments of a wide item found into the first of them. The first warp of each calls it.
    __device__ __forceinline__ void merge_shares(const Shared<Shape>& shared, int buffer) {
        __syncwarp();  // the queries have been read
        if (fragment > 0) leave(shared, buffer, shared.share_weights(buffer));
        synchronise_some<Tile::kFragments * kWarpSize>(kShareBarrier);
        if (fragment > 0) return;
#pragma unroll 1
        for (int first = kFragmentRows; first < Tile::kTileRows; first += kFragmentRows) {
            merge([&](int r) { return shared.share_weights(buffer)[first + places[r]]; },
                  [&](int r, int v) { return pass_vector(shared, buffer, first + places[r], v); });
        }
    }

    // Takes in a partial result of the lane's rows r: its weight, and its vectors v. Totals must have been summed over the
    // quad.
    template <class WeightOf, class VectorOf>
    __device__ __forceinline__ void merge(WeightOf weight_of, VectorOf vector_of) {
        float highest[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) highest[r] = fmaxf(maximum[r], unscaled(weight_of(r).log));
        rescale(highest);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const Weight<Element> weight = weight_of(r);
            if (weight.log == negative_infinity()) continue;
            const float factor = exp2_fast(weight.log - base[r]);
            total[r] += factor * weight.total;
#pragma unroll
            for (int v = 0; v < Tile::kLaneVectors; ++v) {
                float values[Tile::kVectorElements];
                Format::unpack(values, *vector_of(r, v));
#pragma unroll
                for (int i = 0; i < Tile::kVectorElements; ++i) {
                    sum_at(v, i, r) = fmaf(factor, values[i], sum_at(v, i, r));
                }
            }
        }
    }

    // What it held in device memory is of no more use: unless a line has other rows', it need not be written back.
    __device__ __forceinline__ void discard_shelf(const Plan<Element>& plan, int shelf, int head) const {
        if constexpr (Tile::kRowBytes % kLineBytes == 0) {
            const int which = lane % kQuad, row = which == 0 ? rows[0] : rows[1];
            if (which > 1 || !exists(row)) return;
            Element* from = plan.sums + scratch_row<Shape>(shelf, head, row) * Tile::kChannels;
#pragma unroll
            for (int at = 0; at < Tile::kRowBytes; at += kLineBytes) discard_line(reinterpret_cast<char*>(from) + at);
        }
    }

    // Nothing is copied where there is no row.
    __device__ __forceinline__ Weight<Element> shelf_weight(const Shared<Shape>& shared, int r) const {
        if (!exists(rows[r])) return {negative_infinity()};
        return shared.result_weights()[places[r]];
    }

    __device__ __forceinline__ uint4* scratch_vectors(const Plan<Element>& plan, int at) const {
        return reinterpret_cast<uint4*>(plan.sums + at * Tile::kChannels) + lane % kQuad * Tile::kLaneVectors;
    }

    // Divides by the totals, adds the bias of the values and writes whole 16-byte vectors by way of `staging`: the 16
    // rows of shared memory that held the warp's queries. A row that keeps nothing has a total of 0 and becomes zeros,
    // whatever its sum is.
    __device__ __forceinline__ void store(Element* result, int result_stride, const Element* value_bias, char* staging) {
        __syncwarp();  // the queries have been read, or what the pass before has left there: no chunk need lie between
        Format::stage(staging, lane, sum, total, value_bias);
        __syncwarp();
        constexpr int kReads = kFragmentRows * Tile::kRowVectors / kWarpSize;
        const int place = lane / Tile::kRowVectors, vector = lane % Tile::kRowVectors;
        uint4 whole[kReads];
#pragma unroll
        for (int i = 0; i < kReads; ++i) {
            const int at = swizzled<Tile::kRowVectors>(place + i * Tile::kWarpRows, vector);
            whole[i] = *reinterpret_cast<const uint4*>(staging + at);
        }
        result += vector * Tile::kVectorElements;
#pragma unroll
        for (int i = 0; i < kReads; ++i) {
            // Lane 4 r holds the number of row r, and of row r + 8; the lanes' places are all below 8, or none is.
            const int from = (place + i * Tile::kWarpRows) % 8 * kQuad;
            const int row = __shfl_sync(kFullWarp, rows[i * Tile::kWarpRows / 8], from);
            if (exists(row) && (Tile::kEven || vector * Tile::kVectorElements < Tile::kHeadDim)) {
                *reinterpret_cast<uint4*>(result + row * result_stride) = whole[i];
            }
        }
    }
};

}  // namespace atoffer::gather
