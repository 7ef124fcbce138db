// A contiguous row-major array of rank N that somebody else owns, and a 64-byte aligned buffer to
// own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "core/check.h"

namespace winnow {

template <typename T, int N>
struct TensorView {
  T* data = nullptr;
  std::array<int64_t, N> shape{};

  TensorView() = default;
  TensorView(T* data_in, std::array<int64_t, N> shape_in) : data(data_in), shape(shape_in) {}
  // A view of mutable data is a view of constant data.
  operator TensorView<const T, N>() const  // NOLINT(google-explicit-constructor)
      requires(!std::is_const_v<T>) {
    return {data, shape};
  }

  int64_t size() const {
    int64_t n = 1;
    for (int64_t extent : shape) n *= extent;
    return n;
  }
  int64_t stride(int axis) const {
    int64_t n = 1;
    for (int i = axis + 1; i < N; ++i) n *= shape[i];
    return n;
  }
  // Pointer to the first element of entry `i` of axis 0.
  T* row(int64_t i) const { return data + i * stride(0); }
  // Entries [begin, end) of axis 0.
  TensorView Slice(int64_t begin, int64_t end) const {
    WINNOW_CHECK(0 <= begin && begin <= end && end <= shape[0], "slice [{}, {}) of {}", begin, end,
                 shape[0]);
    TensorView out{data + begin * stride(0), shape};
    out.shape[0] = end - begin;
    return out;
  }
  std::span<T> span() const { return {data, static_cast<size_t>(size())}; }
};

inline constexpr size_t kAlignment = 64;

// Uninitialised, 64-byte aligned storage; grows by `Resize`, which keeps no contents.
template <typename T>
class AlignedBuffer {
  static_assert(std::is_trivial_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t n) { Resize(n); }

  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::move(other.data_)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, 0);
    return *this;
  }

  // Makes room for `n` elements; contents are lost when it has to grow. Throws std::bad_alloc and
  // is empty then.
  void Resize(size_t n) {
    if (n > capacity_) {
      data_.reset();
      size_ = capacity_ = 0;
      data_.reset(static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{kAlignment})));
      capacity_ = n;
    }
    size_ = n;
  }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return size_; }
  std::span<T> span() { return {data_.get(), size_}; }
  T& operator[](size_t i) { return data_.get()[i]; }
  const T& operator[](size_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(T* p) const { ::operator delete (p, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace winnow
