// Pairs: two neighbouring 16-bit elements in one register, the low half first.
#pragma once

#include "common.cuh"

namespace atoffer {

template <class T>
__device__ __forceinline__ unsigned pack_pair(float low, float high) {
    if constexpr (kSame<T, __half>) {
        const __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<const unsigned*>(&pair);
    } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const unsigned*>(&pair);
    }
}

// The pair's elements plus those of `bias`, each rounded once.
template <class T>
__device__ __forceinline__ unsigned add_pairs(unsigned pair, unsigned bias) {
    if constexpr (kSame<T, __half>) {
        const __half2 sum = __hadd2(*reinterpret_cast<const __half2*>(&pair), *reinterpret_cast<const __half2*>(&bias));
        return *reinterpret_cast<const unsigned*>(&sum);
    } else {
        const __nv_bfloat162 sum =
            __hadd2(*reinterpret_cast<const __nv_bfloat162*>(&pair), *reinterpret_cast<const __nv_bfloat162*>(&bias));
        return *reinterpret_cast<const unsigned*>(&sum);
    }
}

}  // namespace atoffer
