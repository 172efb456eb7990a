// What the templates share: element types, vector loads, activations, warp reductions, and thin wrappers of the
// instructions that CUDA C++ does not name (cp.async, ldmatrix, mma). Nothing here knows of shapes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace atoffer {

constexpr int kWarpSize = 32;
constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kVectorBytes = 16;   // of the widest access: tensors begin at multiples of it, not of what newer chips move
constexpr int kFragmentRows = 16;  // rows of an mma.m16n8k16's result, and its depth
constexpr int kMmaColumns = 8;     // columns of the result
constexpr int kQuad = 4;           // lanes that share a row of it

template <class T, class U>
constexpr bool kSame = false;
template <class T>
constexpr bool kSame<T, T> = true;

// ---- Elements: storage formats; arithmetic is float32.

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) { return value; }
template <>
__device__ __forceinline__ __half from_float<__half>(float value) { return __float2half_rn(value); }
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) { return __float2bfloat16_rn(value); }

__device__ __forceinline__ float negative_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

// V elements that one instruction moves; its address must be a multiple of its size.
template <class T, int V>
struct alignas(sizeof(T) * V) Vector {
    static_assert(sizeof(T) * V <= kVectorBytes, "a wider access wants tensors that begin at multiples of 32 bytes");
    T values[V];
};

// Of V elements, those that one instruction moves.
template <class T, int V>
constexpr int kAtOnce = sizeof(T) * V <= kVectorBytes ? V : kVectorBytes / static_cast<int>(sizeof(T));

template <class T, int V>
__device__ __forceinline__ void load_floats(float (&result)[V], const T* from) {
    constexpr int kElements = kAtOnce<T, V>;
    static_assert(V % kElements == 0, "accesses are all of one size");
#pragma unroll
    for (int first = 0; first < V; first += kElements) {
        const auto packed = *reinterpret_cast<const Vector<T, kElements>*>(from + first);
#pragma unroll
        for (int i = 0; i < kElements; ++i) result[first + i] = to_float(packed.values[i]);
    }
}

template <class T, int V>
__device__ __forceinline__ void store_floats(T* to, const float (&source)[V]) {
    constexpr int kElements = kAtOnce<T, V>;
    static_assert(V % kElements == 0, "accesses are all of one size");
#pragma unroll
    for (int first = 0; first < V; first += kElements) {
        Vector<T, kElements> packed;
#pragma unroll
        for (int i = 0; i < kElements; ++i) packed.values[i] = from_float<T>(source[first + i]);
        *reinterpret_cast<Vector<T, kElements>*>(to + first) = packed;
    }
}

// ---- The device.

// As many as there are, or numbers for more: the same wherever it is asked for.
__device__ __forceinline__ int multiprocessors() {
    unsigned count;
    asm("mov.u32 %0, %%nsmid;" : "=r"(count));
    return static_cast<int>(count);
}

// ---- Launches that overlap: see driver_launch.py.

// Waits until the kernels before this one on the stream have ended and what they wrote is there. Every thread of every
// kernel calls it before it touches device memory that they may have written, or may still read: all but plans.
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel's blocks take their place once all blocks of this one have called it: they wait for its end. Who
// calls it before its own wait lets kernels queue up, each in the room that the ones before still need.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- The same value, of which the compiler knows nothing: what is computed from a word is not kept from one use to the
// next, and what is added to an address is not added to the parts that it was made of.

__device__ __forceinline__ unsigned opaque(unsigned word) {
    asm volatile("" : "+r"(word));
    return word;
}

template <class T>
__device__ __forceinline__ const T* opaque(const T* address) {
    asm("" : "+l"(address));
    return address;
}

// ---- Order of instructions: what the assembler would put off until after a wait, it computes before a store of it, which
// never happens.

// `place` is an offset, or an address of shared memory, and not -1.
template <class T>
__device__ __forceinline__ void settle(T& place) {
    static_assert(sizeof(T) == 4, "a place is a word");
    asm volatile("{\n\t.reg .pred never;\n\tsetp.eq.u32 never, %0, -1;\n\t@never st.shared.u32 [%0], %0;\n\t}"
                 : "+r"(place)::"memory");
}

// `value` is not negative, `nowhere` any address of shared memory.
__device__ __forceinline__ void settle(float value, unsigned nowhere) {
    asm volatile("{\n\t.reg .pred never;\n\tsetp.lt.f32 never, %0, 0f00000000;\n\t@never st.shared.f32 [%1], %0;\n\t}" ::
                     "f"(value), "r"(nowhere)
                 : "memory");
}

// ---- Activations of operator 11.

__device__ __forceinline__ float exp2_fast(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// x * Phi(x) = max(x, 0) - |x| * erfc(|x| / sqrt(2)) / 2. The polynomial is log2 of erfc's half, fitted where a float32
// tells the difference: errors are at most 2.5e-7 (7e-8 for x < 0), half of those of 0.5 * x * (1 + erff(x / sqrt(2))),
// at a third of its instructions.
struct Gelu {
    static constexpr float kFlat = 16.0f;  // from here on erfc is 0
    static __device__ __forceinline__ float apply(float x) {
        const float a = fminf(fabsf(x), kFlat);
        float log = -0x1.0fa7d6p-21f;
        log = fmaf(log, a, 0x1.126b76p-17f);
        log = fmaf(log, a, -0x1.273baep-16f);
        log = fmaf(log, a, -0x1.40173ap-11f);
        log = fmaf(log, a, 0x1.ffac66p-8f);
        log = fmaf(log, a, -0x1.b36a14p-5f);
        log = fmaf(log, a, -0x1.d5ea86p-2f);
        log = fmaf(log, a, -0x1.26b326p+0f);
        log = fmaf(log, a, -0x1.ffff64p-1f);
        return fmaf(-a, exp2_fast(log), x < 0.0f ? 0.0f : x);  // NaN stays NaN
    }
};

// x / 2 * (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2 / pi) * (x + 0.044715 * x^3): errors are at most 6e-7.
struct GeluTanh {
    static constexpr float kScale = -2.0f * 0.79788456080286536f * 1.44269504088896341f;  // exp(-2u) in powers of two
    static __device__ __forceinline__ float apply(float x) {
        return __fdividef(x, 1.0f + exp2_fast(kScale * fmaf(0.044715f * x * x, x, x)));
    }
};

// The textbook forms, for float32 results: small ones are as accurate as large ones.
struct AccurateGelu {
    static __device__ __forceinline__ float apply(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }
};

struct AccurateGeluTanh {
    static constexpr float kScale = 0.79788456080286536f;  // sqrt(2 / pi)
    static __device__ __forceinline__ float apply(float x) {
        return 0.5f * x * (1.0f + tanhf(kScale * (x + 0.044715f * x * x * x)));
    }
};

struct Relu {  // NaN stays NaN.
    static __device__ __forceinline__ float apply(float x) { return x < 0.0f ? 0.0f : x; }
};

// ---- Warp reductions; every lane gets the result.

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kFullWarp, value, lanes);
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, lanes));
    return value;
}

// ---- Asynchronous copies to shared memory (sm_80 and later).

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Copies BYTES (4, 8 or 16), or writes BYTES zeros where `valid` is false: `from` is then not read.
template <int BYTES>
__device__ __forceinline__ void copy_async(unsigned to, const void* from, bool valid = true) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async moves 4, 8 or 16 bytes");
    const int bytes_read = valid ? BYTES : 0;
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes_read) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(bytes_read), "n"(BYTES)
                     : "memory");
    }
}

// Copies 16 bytes; the constant offsets cost no instruction.
template <int TO_OFFSET, int FROM_OFFSET = 0>
__device__ __forceinline__ void copy_vector(unsigned to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16;" ::"r"(to), "l"(from), "n"(TO_OFFSET),
                 "n"(FROM_OFFSET)
                 : "memory");
}

// The same, or 16 bytes of zeros where `valid` is false: `from` is then not read.
template <int TO_OFFSET, int FROM_OFFSET>
__device__ __forceinline__ void copy_or_clear(unsigned to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16, %4;" ::"r"(to), "l"(from), "n"(TO_OFFSET),
                 "n"(FROM_OFFSET), "r"(valid ? 16 : 0)
                 : "memory");
}

constexpr int kLineBytes = 128;  // of L2

// Gives up what a line of device memory holds: L2 need not write it back.
__device__ __forceinline__ void discard_line(void* line) {
    asm volatile("discard.global.L2 [%0], %1;" ::"l"(line), "n"(kLineBytes) : "memory");
}

// Closes a group of copies.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all copies that this thread has begun.
__device__ __forceinline__ void finish_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Waits until at most PENDING of this thread's groups are still on their way.
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- Shared memory by address, a multiple of 16 bytes.

__device__ __forceinline__ uint4 load_vector(unsigned address) {
    uint4 vector;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(vector.x), "=r"(vector.y), "=r"(vector.z), "=r"(vector.w)
                 : "r"(address)
                 : "memory");
    return vector;
}

__device__ __forceinline__ float4 load_floats(unsigned address) {
    float4 vector;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(vector.x), "=f"(vector.y), "=f"(vector.z), "=f"(vector.w)
                 : "r"(address)
                 : "memory");
    return vector;
}

__device__ __forceinline__ void store_vector(unsigned address, uint4 vector) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(vector.x), "r"(vector.y), "r"(vector.z),
                 "r"(vector.w)
                 : "memory");
}

// ---- Tensor cores (sm_80 and later).

// Four 8x8 matrices of 16-bit elements; lane l names row l % 8 of matrix l / 8. Lane 4r + c gets columns 2c and
// 2c + 1 of row r of each matrix.
__device__ __forceinline__ void load_matrices(unsigned (&result)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
                 : "r"(address)
                 : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&result)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
                 : "r"(address)
                 : "memory");
}

// Stores what load_matrices loads: lane l names row l % 8 of matrix l / 8, lane 4r + c has columns 2c and 2c + 1 of row r.
__device__ __forceinline__ void store_matrices(unsigned address, const unsigned (&source)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(source[0]),
                 "r"(source[1]), "r"(source[2]), "r"(source[3])
                 : "memory");
#else
    const int lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
        const unsigned row = __shfl_sync(kFullWarp, address, m * 8 + lane / 4);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(row + lane % 4 * 4), "r"(source[m]) : "memory");
    }
#endif
}

// sum (16x8, float32) += a (16x16) * b (16x8). Lane 4r + c holds sum columns 2c, 2c + 1 of rows r and r + 8.
template <class T>
__device__ __forceinline__ void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high) {
    if constexpr (kSame<T, __half>) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
    } else {
        static_assert(kSame<T, __nv_bfloat16>, "tensor cores take 16-bit elements: TF32 is not exact enough");
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
    }
}

}  // namespace atoffer
