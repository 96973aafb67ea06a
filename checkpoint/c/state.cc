// State: tensors, and the boxes of them in the program's memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/c/handles.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera::ckpt::c {
namespace {

// Checks what a manifest holds as text.
absl::Status CheckUtf8(const std::string& text, std::string_view what) {
  if (IsValidUtf8(text)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(what), " is not valid UTF-8"));
}

absl::Status CheckName(const std::string& name) {
  if (name.empty()) return absl::InvalidArgumentError("a tensor has no name");
  return CheckUtf8(name, "the name of a tensor");
}

template <typename... Parts>
absl::Status Wrong(const ShardedTensor& tensor, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, ": ", parts...));
}

absl::Status AddTensor(tessera_state& state, ShardedTensor tensor, int32_t role, int32_t dtype,
                       int32_t dims, const int64_t* global_shape) {
  TESSERA_RETURN_IF_ERROR(CheckName(tensor.name));
  if (role < TESSERA_WEIGHT || role > TESSERA_BUFFER) {
    return Wrong(tensor, "there is no role ", role);
  }
  tensor.role = static_cast<TensorRole>(role);
  tensor.dtype = static_cast<DType>(dtype);
  if (dtype < 0 || ElementSize(tensor.dtype) == 0) {
    return Wrong(tensor, "there is no dtype ", dtype);
  }
  if (dims < 0 || dims > kMaxDims) return Wrong(tensor, dims, " dims, expected at most ", kMaxDims);
  TESSERA_ASSIGN_OR_RETURN(tensor.global_shape, Numbers(global_shape, dims, "global_shape"));
  const auto bytes = CheckedByteCount(tensor.global_shape, ElementSize(tensor.dtype));
  if (!bytes.ok()) return Wrong(tensor, bytes.status().message());
  state.dict.tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status AddAlias(tessera_state& state, ShardedTensor alias) {
  TESSERA_RETURN_IF_ERROR(CheckName(alias.name));
  const auto found = std::ranges::find(state.dict.tensors, alias.alias_of, &ShardedTensor::name);
  if (found == state.dict.tensors.end()) {
    return Wrong(alias, "a second name of ", alias.alias_of, ", which was not added");
  }
  alias.role = found->role;
  alias.dtype = found->dtype;
  alias.global_shape = found->global_shape;
  state.dict.tensors.push_back(std::move(alias));
  return absl::OkStatus();
}

// Returns the tensor that was added last, to which a box is added.
absl::StatusOr<ShardedTensor*> LastTensor(tessera_state& state) {
  if (state.dict.tensors.empty()) return absl::InvalidArgumentError("no tensor was added yet");
  ShardedTensor& tensor = state.dict.tensors.back();
  if (!tensor.alias_of.empty()) return Wrong(tensor, "a second name has no memory");
  return &tensor;
}

absl::StatusOr<Box> BoxIn(const ShardedTensor& tensor, const int64_t* offset,
                          const int64_t* shape) {
  const size_t dims = tensor.global_shape.size();
  Box box;
  TESSERA_ASSIGN_OR_RETURN(box.global_offset, Numbers(offset, dims, "offset"));
  TESSERA_ASSIGN_OR_RETURN(box.shape, Numbers(shape, dims, "shape"));
  const absl::Status inside = CheckBoxInside(tensor.global_shape, box);
  if (!inside.ok()) return Wrong(tensor, inside.message());
  return box;
}

absl::Status CheckFlags(int32_t flags) {
  if ((flags & ~TESSERA_READ_ONLY) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("there are no flags ", flags));
}

// Adds a shard that has the place of its memory.
absl::Status AddShard(tessera_state& state, Shard shard, const int64_t* offset,
                      const int64_t* shape, const int64_t* strides, int32_t flags) {
  TESSERA_RETURN_IF_ERROR(CheckFlags(flags));
  TESSERA_ASSIGN_OR_RETURN(ShardedTensor* const tensor, LastTensor(state));
  if (shard.memory_elements < -1) {
    return Wrong(*tensor, "memory of ", shard.memory_elements, " elements");
  }
  if (shard.dtype == DType::kUnspecified) shard.dtype = tensor->dtype;
  TESSERA_ASSIGN_OR_RETURN(shard.box, BoxIn(*tensor, offset, shape));
  if (shard.data == nullptr && !shard.box.empty()) return Wrong(*tensor, "data is NULL");
  if (strides != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(shard.strides,
                             Numbers(strides, tensor->global_shape.size(), "strides"));
  }
  shard.read_only = (flags & TESSERA_READ_ONLY) != 0;
  tensor->shards.push_back(std::move(shard));
  return absl::OkStatus();
}

absl::Status AddFlatRange(tessera_state& state, void* data, const int64_t* offset,
                          const int64_t* shape, int64_t begin, int64_t end, int32_t flags) {
  TESSERA_RETURN_IF_ERROR(CheckFlags(flags));
  TESSERA_ASSIGN_OR_RETURN(ShardedTensor* const tensor, LastTensor(state));
  TESSERA_ASSIGN_OR_RETURN(const Box box, BoxIn(*tensor, offset, shape));
  if (begin < 0 || begin > end || end > ElementCount(box.shape)) {
    return Wrong(*tensor, "elements [", begin, ", ", end, ") of ", ElementCount(box.shape));
  }
  if (data == nullptr && begin < end) return Wrong(*tensor, "data is NULL");
  auto* at = static_cast<std::byte*>(data);
  for (Box& part : FlatRangeToBoxes(box, begin, end)) {
    const int64_t elements = ElementCount(part.shape);
    tensor->shards.push_back({.box = std::move(part),
                              .data = at,
                              .dtype = tensor->dtype,
                              .memory_elements = elements,
                              .read_only = (flags & TESSERA_READ_ONLY) != 0});
    at += elements * ElementSize(tensor->dtype);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Merge(tessera_merge merge, void* context,
                                  const std::map<int, std::string>& by_rank) {
  std::vector<int32_t> ranks;
  std::vector<const void*> entries;
  std::vector<size_t> bytes;
  for (const auto& [rank, entry] : by_rank) {
    ranks.push_back(rank);
    entries.push_back(entry.data());
    bytes.push_back(entry.size());
  }
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<std::string> merged, CollectMessages(1, [&](tessera_messages* messages) {
        return merge(context, ranks.size(), ranks.data(), entries.data(), bytes.data(), messages);
      }));
  return std::move(merged[0]);
}

}  // namespace
}  // namespace tessera::ckpt::c

using namespace tessera::ckpt::c;  // NOLINT(google-build-using-namespace)

extern "C" {

int32_t tessera_state_create(tessera_state** state) {
  return Run([&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(state, "state"));
    *state = new tessera_state();
    return absl::OkStatus();
  });
}

void tessera_state_free(tessera_state* state) { Free(state); }

int32_t tessera_state_add_tensor(tessera_state* state, const char* name, int32_t role,
                                 int32_t dtype, int32_t dims, const int64_t* global_shape) {
  return RunOn(state, "state", [&]() -> absl::Status {
    tessera::ckpt::ShardedTensor tensor;
    TESSERA_ASSIGN_OR_RETURN(tensor.name, Text(name, "name"));
    return AddTensor(*state, std::move(tensor), role, dtype, dims, global_shape);
  });
}

int32_t tessera_state_add_alias(tessera_state* state, const char* name, const char* alias_of) {
  return RunOn(state, "state", [&]() -> absl::Status {
    tessera::ckpt::ShardedTensor alias;
    TESSERA_ASSIGN_OR_RETURN(alias.name, Text(name, "name"));
    TESSERA_ASSIGN_OR_RETURN(alias.alias_of, Text(alias_of, "alias_of"));
    return AddAlias(*state, std::move(alias));
  });
}

int32_t tessera_state_add_shard(tessera_state* state, void* data, int64_t elements,
                                const int64_t* offset, const int64_t* shape, const int64_t* strides,
                                int32_t flags) {
  return RunOn(state, "state", [&]() -> absl::Status {
    return AddShard(*state, {.data = data, .memory_elements = elements}, offset, shape, strides,
                    flags);
  });
}

int32_t tessera_state_add_device_shard(tessera_state* state, const tessera_device* device,
                                       void* handle, void* data, int64_t elements, int32_t dtype,
                                       const int64_t* offset, const int64_t* shape,
                                       const int64_t* strides, int32_t flags) {
  return RunOn(state, "state", [&]() -> absl::Status {
    const auto type = static_cast<tessera::DType>(dtype);
    if (dtype != 0 && tessera::ElementSize(type) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("there is no dtype ", dtype));
    }
    TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<tessera::ckpt::DeviceMemory> memory,
                             MakeDevice(device));
    tessera::ckpt::Shard shard =
        tessera::ckpt::Shard::OnDevice(std::move(memory), handle, data, type, {});
    shard.memory_elements = elements;
    return AddShard(*state, std::move(shard), offset, shape, strides, flags);
  });
}

int32_t tessera_state_add_flat_range(tessera_state* state, void* data, const int64_t* offset,
                                     const int64_t* shape, int64_t begin, int64_t end,
                                     int32_t flags) {
  return RunOn(state, "state", [&]() -> absl::Status {
    return AddFlatRange(*state, data, offset, shape, begin, end, flags);
  });
}

int32_t tessera_state_set_entry(tessera_state* state, const char* name, const void* data,
                                size_t bytes) {
  return RunOn(state, "state", [&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::string entry, Text(name, "name"));
    TESSERA_RETURN_IF_ERROR(CheckUtf8(entry, "the name of an entry"));
    if (bytes > 0) TESSERA_RETURN_IF_ERROR(CheckPointer(data, "data"));
    state->metadata.entries[entry] = std::string(static_cast<const char*>(data), bytes);
    return absl::OkStatus();
  });
}

int32_t tessera_state_merge_entry(tessera_state* state, const char* name, tessera_merge merge,
                                  void* context) {
  return RunOn(state, "state", [&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::string entry, Text(name, "name"));
    if (merge == nullptr) return absl::InvalidArgumentError("merge is NULL");
    state->metadata.merge[entry] = [merge, context](const std::map<int, std::string>& by_rank) {
      return Merge(merge, context, by_rank);
    };
    return absl::OkStatus();
  });
}

int32_t tessera_state_set_program(tessera_state* state, const char* program) {
  return RunOn(state, "state", [&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(std::string text, Text(program, "program"));
    TESSERA_RETURN_IF_ERROR(CheckUtf8(text, "program"));
    state->metadata.program = std::move(text);
    return absl::OkStatus();
  });
}

}  // extern "C"
