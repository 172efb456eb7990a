// TF32 on tensor cores (sm_80 and later): float32 with 10 of its 23 bits of fraction.
#pragma once

#include "common.cuh"

namespace atoffer {

// sum (16x8, float32) += a (16x8) * b (8x8); the 13 lowest bits of a and b do not count. Lane 4r + c gives columns c
// and c + 4 of rows r and r + 8 of a, and rows c and c + 4 of column r of b; it holds sum columns 2c, 2c + 1 of rows r
// and r + 8.
__device__ __forceinline__ void multiply_add_tf32(float (&sum)[4], const unsigned (&a)[4], unsigned b_low,
                                                  unsigned b_high) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
}

}  // namespace atoffer
