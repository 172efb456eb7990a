// Hopper's (sm_90a) warpgroup products, as thin wrappers. Nothing here knows of shapes.
#pragma once

#include "common.cuh"
#include "panels.cuh"

namespace atoffer {

constexpr int kWarpgroupSize = 128;  // threads of the four warps that issue a product together

// ---- Warpgroup products. They run beside the threads that issue them, and read shared memory through another path
// (the async proxy) than loads, stores and cp.async write it.

// What this thread wrote, or saw written by way of a barrier, is visible to the products that it issues from here on.
__device__ __forceinline__ void fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Registers that earlier code wrote are visible to the products that follow.
__device__ __forceinline__ void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes a group of products.
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING groups still run.
template <int PENDING>
__device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving uses of these registers across this place: it does not know that products run on.
template <int N>
__device__ __forceinline__ void pin(float (&registers)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

template <int M, int N>
__device__ __forceinline__ void pin(unsigned (&registers)[M][N]) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < N; ++n) asm volatile("" : "+r"(registers[m][n])::"memory");
    }
}

// The asm statements of products: sums come first, then a (four registers or a descriptor), b's descriptor, whether to
// keep what the sums hold, whether b is transposed.
#define ATOFFER_SUMS_16(i)                                                                                         \
    "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]), "+f"(sum[i + 5]),         \
        "+f"(sum[i + 6]), "+f"(sum[i + 7]), "+f"(sum[i + 8]), "+f"(sum[i + 9]), "+f"(sum[i + 10]),                  \
        "+f"(sum[i + 11]), "+f"(sum[i + 12]), "+f"(sum[i + 13]), "+f"(sum[i + 14]), "+f"(sum[i + 15])
#define ATOFFER_SUMS_32 ATOFFER_SUMS_16(0), ATOFFER_SUMS_16(16)
#define ATOFFER_SUMS_64 ATOFFER_SUMS_32, ATOFFER_SUMS_16(32), ATOFFER_SUMS_16(48)
#define ATOFFER_NAMES_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ATOFFER_NAMES_64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define ATOFFER_PRODUCT(SHAPE, TYPE, COUNT, A_AND_B, KEEP, TRANSPOSES, ...)                        \
    asm volatile("{\n\t.reg .pred keep;\n\tsetp.ne.b32 keep, " KEEP ", 0;\n\t"                     \
                 "wgmma.mma_async.sync.aligned." SHAPE ".f32." TYPE "." TYPE                       \
                 " {" ATOFFER_NAMES_##COUNT "}, " A_AND_B ", keep, 1, 1, " TRANSPOSES ";\n\t}"     \
                 : ATOFFER_SUMS_##COUNT                                                            \
                 : __VA_ARGS__, "l"(b), "r"(static_cast<int>(keep)), "n"(static_cast<int>(TRANSPOSED)))

#define ATOFFER_FROM_REGISTERS(TYPE)                                                                              \
    if constexpr (N == 64)                                                                                        \
        ATOFFER_PRODUCT("m64n64k16", TYPE, 32, "{%32, %33, %34, %35}, %36", "%37", "%38", ATOFFER_A_REGISTERS);   \
    else                                                                                                          \
        ATOFFER_PRODUCT("m64n128k16", TYPE, 64, "{%64, %65, %66, %67}, %68", "%69", "%70", ATOFFER_A_REGISTERS)
#define ATOFFER_A_REGISTERS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

#define ATOFFER_FROM_SHARED(TYPE)                                                              \
    if constexpr (N == 64)                                                                     \
        ATOFFER_PRODUCT("m64n64k16", TYPE, 32, "%32, %33", "%34", "0, %35", "l"(a));           \
    else                                                                                       \
        ATOFFER_PRODUCT("m64n128k16", TYPE, 64, "%64, %65", "%66", "0, %67", "l"(a))

// sum (64 x N, float32) = a (64 x 16) * b (16 x N), plus what it held if `keep`. Warp w of the warpgroup has rows 16w
// to 16w + 15: lane 4r + c holds columns 8n + 2c and 8n + 2c + 1 of row r in sum[4n], sum[4n + 1], of row r + 8 in
// sum[4n + 2], sum[4n + 3]. a's registers: columns 2c, 2c + 1 of row r, of row r + 8; columns 2c + 8, 2c + 9 of both.
template <class T, int N, bool TRANSPOSED>
__device__ __forceinline__ void issue_product(float (&sum)[N / 2], const unsigned (&a)[4], unsigned long long b,
                                              bool keep) {
    static_assert(N == 64 || N == 128, "products are 64 or 128 columns wide");
    if constexpr (kSame<T, __half>) {
        ATOFFER_FROM_REGISTERS("f16");
    } else {
        static_assert(kSame<T, __nv_bfloat16>, "tensor cores take 16-bit elements: TF32 is not exact enough");
        ATOFFER_FROM_REGISTERS("bf16");
    }
}

// The same with a in shared memory.
template <class T, int N, bool TRANSPOSED>
__device__ __forceinline__ void issue_product(float (&sum)[N / 2], unsigned long long a, unsigned long long b,
                                              bool keep) {
    static_assert(N == 64 || N == 128, "products are 64 or 128 columns wide");
    if constexpr (kSame<T, __half>) {
        ATOFFER_FROM_SHARED("f16");
    } else {
        static_assert(kSame<T, __nv_bfloat16>, "tensor cores take 16-bit elements: TF32 is not exact enough");
        ATOFFER_FROM_SHARED("bf16");
    }
}

}  // namespace atoffer
