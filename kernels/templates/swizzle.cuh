// Where the 16-byte vectors of a matrix's rows lie in shared memory, so that what a warp reads at once is in distinct banks.
#pragma once

#include "common.cuh"

namespace atoffer {

// Byte offset of 16-byte vector `vector` of row `row` in a matrix of ROW_VECTORS vectors a row. The key has digits of
// the row added up, so that rows a constant step apart, not just neighbours, fall into distinct banks.
template <int ROW_VECTORS>
struct Swizzle {
    static_assert((ROW_VECTORS & (ROW_VECTORS - 1)) == 0, "a row's vectors change places among themselves alone");
    static constexpr int kBankRow = 128 / kVectorBytes;  // vectors that span all banks
    static constexpr int kRowsInBanks = ROW_VECTORS >= kBankRow ? 1 : kBankRow / ROW_VECTORS;
    static constexpr int kKeys = ROW_VECTORS < kBankRow ? ROW_VECTORS : kBankRow;

    // The key of row a + b, where a is a multiple of a power of two that b is less than, is the sum of theirs.
    __host__ __device__ static constexpr int key_sum(int row) {
        const int line = row / kRowsInBanks;
        return line + line / 8 + line / 16 + line / 32;
    }

    __host__ __device__ static constexpr int at(int row, int vector, int key_sum) {
        return (row * ROW_VECTORS + (vector ^ key_sum % kKeys)) * kVectorBytes;
    }
};

template <int ROW_VECTORS>
__device__ __forceinline__ int swizzled(int row, int vector) {
    return Swizzle<ROW_VECTORS>::at(row, vector, Swizzle<ROW_VECTORS>::key_sum(row));
}

// The address of a row's vectors 2k and up, from that of vectors 0 and up: swizzling stays inside 128 bytes.
__device__ __forceinline__ unsigned at_depth(unsigned first, int k) {
    return (first ^ k % 4 * 2 * kVectorBytes) + k / 4 * 8 * kVectorBytes;
}

}  // namespace atoffer
