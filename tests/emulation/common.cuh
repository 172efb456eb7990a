// What kernels/templates/common.cuh offers, on the emulated machine: the same names with the same meaning.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "machine.h"

#define threadIdx emulation::thread_index
#define blockIdx emulation::block_index
#undef __launch_bounds__
#define __launch_bounds__(...)
#define __cluster_dims__(...)

// ---- What CUDA C++ itself offers.

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline void __syncthreads() { emulation::synchronise(0, 0); }
inline void __syncwarp() { emulation::exchange("__syncwarp", 0); }

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
    return emulation::exchange("__shfl_sync", value)[lane % emulation::kLanes];
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int lanes) {
    return emulation::exchange("__shfl_xor_sync", value)[emulation::lane() ^ lanes];
}

inline unsigned __reduce_or_sync(unsigned, unsigned value) {
    const auto values = emulation::exchange("__reduce_or_sync", value);
    unsigned any = 0;
    for (int lane = 0; lane < emulation::kLanes; ++lane) any |= values[lane];
    return any;
}

inline int __any_sync(unsigned mask, int predicate) { return __reduce_or_sync(mask, predicate != 0) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __reduce_or_sync(mask, predicate == 0) == 0; }

inline unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

inline float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline unsigned __ballot_sync(unsigned, int predicate) {
    const auto values = emulation::exchange("__ballot_sync", predicate != 0);
    unsigned lanes = 0;
    for (int lane = 0; lane < emulation::kLanes; ++lane) lanes |= static_cast<unsigned>(values[lane]) << lane;
    return lanes;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

inline int atomicAdd(int* to, int value) {
    emulation::pause();
    emulation::changed();
    const int before = *to;
    *to += value;
    return before;
}

inline void __threadfence() {}

namespace atoffer {

constexpr int kWarpSize = 32;
constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kVectorBytes = 16;
constexpr int kFragmentRows = 16;
constexpr int kMmaColumns = 8;
constexpr int kQuad = 4;

template <class T, class U>
constexpr bool kSame = false;
template <class T>
constexpr bool kSame<T, T> = true;

// ---- Elements.

inline float to_float(float value) { return value; }
inline float to_float(__half value) { return __half2float(value); }
inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T>
T from_float(float value);
template <>
inline float from_float<float>(float value) { return value; }
template <>
inline __half from_float<__half>(float value) { return __float2half_rn(value); }
template <>
inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) { return __float2bfloat16_rn(value); }

inline float negative_infinity() { return -INFINITY; }

template <class T, int V>
struct alignas(sizeof(T) * V) Vector {
    T values[V];
};

template <class T, int V>
void load_floats(float (&result)[V], const T* from) {
    const Vector<T, V> packed = *reinterpret_cast<const Vector<T, V>*>(from);
    for (int i = 0; i < V; ++i) result[i] = to_float(packed.values[i]);
}

template <class T, int V>
void store_floats(T* to, const float (&source)[V]) {
    Vector<T, V> packed;
    for (int i = 0; i < V; ++i) packed.values[i] = from_float<T>(source[i]);
    *reinterpret_cast<Vector<T, V>*>(to) = packed;
}

inline float exp2_fast(float x) { return exp2f(x); }
// Few, so that small workloads have tiles for several waves of thread blocks: test_order_of_blocks counts on 3.
inline int multiprocessors() { return 3; }
inline void wait_for_inputs() { emulation::wait_for_inputs(); }
inline void let_next_begin() {}
template <class T>
T opaque(T value) {
    return value;
}

template <class T>
void settle(T&) {}
inline void settle(float, unsigned) {}
inline float __log2f(float x) { return log2f(x); }
inline float __fdividef(float x, float y) { return x / y; }

// ---- Warp reductions.

inline float warp_sum(float value) {
    for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kFullWarp, value, lanes);
    return value;
}

inline float warp_max(float value) {
    for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, lanes));
    return value;
}

// ---- Asynchronous copies.

inline unsigned shared_address(const void* pointer) { return emulation::shared_address(pointer); }

template <int BYTES>
void copy_async(unsigned to, const void* from, bool valid = true) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async moves 4, 8 or 16 bytes");
    emulation::copy_later(to, from, BYTES, valid);
}

template <int TO_OFFSET, int FROM_OFFSET = 0>
void copy_vector(unsigned to, const void* from) {
    emulation::copy_later(to + TO_OFFSET, static_cast<const char*>(from) + FROM_OFFSET, 16, true);
}

template <int TO_OFFSET, int FROM_OFFSET>
void copy_or_clear(unsigned to, const void* from, bool valid) {
    emulation::copy_later(to + TO_OFFSET, static_cast<const char*>(from) + FROM_OFFSET, 16, valid);
}

constexpr int kLineBytes = 128;

inline void discard_line(void* line) { std::memset(line, 0xff, kLineBytes); }  // NaN, whoever reads it

inline void finish_copies() { emulation::finish_copies(); }

inline void commit_copies() { emulation::commit_copies(); }

template <int PENDING>
void wait_copies() {
    emulation::wait_copies(PENDING);
}

inline uint4 load_vector(unsigned address) {
    uint4 vector;
    std::memcpy(&vector, emulation::shared_bytes("ld.shared.v4", address, 16), 16);
    return vector;
}

inline float4 load_floats(unsigned address) {
    float4 vector;
    std::memcpy(&vector, emulation::shared_bytes("ld.shared.v4", address, 16), 16);
    return vector;
}

inline void store_vector(unsigned address, uint4 vector) {
    std::memcpy(emulation::shared_bytes("st.shared.v4", address, 16), &vector, 16);
}

// ---- Tensor cores.

// The byte in row `row` of the matrix that lanes 8 m to 8 m + 7 name.
inline char* matrix_byte(const char* what, const emulation::Lanes<unsigned>& addresses, int matrix, int row, int byte) {
    return emulation::shared_bytes(what, addresses[matrix * 8 + row], 16) + byte;
}

inline void load_matrices(unsigned (&result)[4], unsigned address) {
    const auto addresses = emulation::exchange("ldmatrix", address);
    const int row = emulation::lane() / 4, column = emulation::lane() % 4 * 2;
    for (int m = 0; m < 4; ++m) std::memcpy(&result[m], matrix_byte("ldmatrix", addresses, m, row, column * 2), 4);
}

inline void store_matrices(unsigned address, const unsigned (&source)[4]) {
    const auto addresses = emulation::exchange("stmatrix", address);
    const int row = emulation::lane() / 4, column = emulation::lane() % 4 * 2;
    for (int m = 0; m < 4; ++m) {
        std::memcpy(matrix_byte("stmatrix", addresses, m, row, column * 2), &source[m], 4);
    }
}

inline void load_matrices_transposed(unsigned (&result)[4], unsigned address) {
    const auto addresses = emulation::exchange("ldmatrix.trans", address);
    const int row = emulation::lane() / 4, column = emulation::lane() % 4 * 2;
    for (int m = 0; m < 4; ++m) {
        uint16_t pair[2];
        for (int i = 0; i < 2; ++i) std::memcpy(&pair[i], matrix_byte("ldmatrix", addresses, m, column + i, row * 2), 2);
        std::memcpy(&result[m], pair, 4);
    }
}

// What a lane gives to a product, as numbers: A's rows r and r + 8, B's column r, for its four places in the depth.
struct Operands {
    float a[2][4], b[4];
};

template <class T>
float half_of(unsigned pair, int half) {
    const uint16_t bits = half ? pair >> 16 : pair & 0xffff;
    T value;
    std::memcpy(&value, &bits, 2);
    return to_float(value);
}

template <class T>
void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high) {
    Operands own;
    for (int at = 0; at < 4; ++at) {  // depths 2c, 2c + 1, 2c + 8, 2c + 9 of lane 4r + c
        for (int r = 0; r < 2; ++r) own.a[r][at] = half_of<T>(a[r + at / 2 * 2], at % 2);
        own.b[at] = half_of<T>(at < 2 ? b_low : b_high, at % 2);
    }
    const auto operands = emulation::exchange("mma", own);
    double products[4] = {};
    for (int c = 0; c < 4; ++c) {
        const Operands of_row = operands[emulation::lane() / 4 * 4 + c];
        for (int j = 0; j < 2; ++j) {
            const Operands of_column = operands[(emulation::lane() % 4 * 2 + j) * 4 + c];
            for (int at = 0; at < 4; ++at) {
                for (int r = 0; r < 2; ++r) products[r * 2 + j] += double(of_row.a[r][at]) * of_column.b[at];
            }
        }
    }
    for (int i = 0; i < 4; ++i) sum[i] = static_cast<float>(sum[i] + products[i]);
}

}  // namespace atoffer
