#ifndef TESSERA_CONVERT_PICKLE_STACK_MACHINE_H_
#define TESSERA_CONVERT_PICKLE_STACK_MACHINE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/errors.h"
#include "convert/pickle/nodes.h"
#include "convert/pickle/value.h"

namespace tessera::ckpt::pickle {

// The stack machine of Python's pickle module, with a node in place of each Python object: the
// effects of the opcodes on the stack, the marks and the memo. No operation reads the pickle.
//
// Errors: DataLoss, with what is wrong; ResourceExhausted, beyond the limits of nodes and lists.
class StackMachine {
 public:
  explicit StackMachine(uint64_t max_nodes) : max_nodes_(std::min<uint64_t>(max_nodes, kNoNode)) {}

  // Add nodes.
  absl::StatusOr<NodeId> Add(const Node& node);
  absl::StatusOr<NodeId> AddText(std::string_view text);
  // Takes the elements on the stack from `first_on_stack` on.
  absl::StatusOr<NodeId> AddTuple(size_t first_on_stack);
  Nodes& nodes() { return *nodes_; }
  std::unique_ptr<Nodes> TakeNodes() { return std::move(nodes_); }

  // Change the stack. Nothing is popped across a mark.
  absl::Status Push(const Node& node);
  absl::StatusOr<NodeId> Pop();
  absl::StatusOr<size_t> PopMark();  // index of the first element above the mark
  absl::Status PushObject(NodeId callable, NodeId arguments, NodeId keyword_arguments = kNoNode);

  // Change and read the memo.
  absl::Status Remember(uint64_t index);
  absl::Status Recall(uint64_t index);

  // Execute opcodes that have no argument in the pickle.
  absl::Status Mark();
  absl::Status Discard();
  absl::Status DiscardToMark();
  absl::Status Duplicate();
  absl::Status PushConstant(Kind kind, uint64_t bits) { return Push({.kind = kind, .a = bits}); }
  absl::Status PushTupleToMark();
  absl::Status PushTuple(size_t count);
  absl::Status PushListToMark(Kind kind);
  absl::Status Append();
  absl::Status AppendToMark(Kind kind);  // kList or kSet
  absl::Status SetItem();
  absl::Status SetItemsToMark();
  absl::Status RememberNext() { return Remember(memo_.size()); }
  absl::Status PushGlobalFromStack();
  absl::Status Reduce();
  absl::Status NewObjectWithKeywords();
  absl::Status ObjectToMark();
  absl::Status Build();
  absl::Status PersistentIdFromStack();

 protected:
  template <typename... Parts>
  static absl::Status Wrong(const Parts&... what) {
    return DataLoss(what...);
  }

 private:
  absl::StatusOr<NodeId> AddShared(const Node& node);
  // Appends the elements on the stack from `first_on_stack` on to a list. Returns its number, a new
  // one for kNoList.
  absl::StatusOr<uint32_t> Extend(uint32_t list, size_t first_on_stack);
  Node& NodeAt(NodeId id) { return nodes_->nodes[id]; }
  absl::StatusOr<NodeId> Top();
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  // Moves the stack's elements from `first_on_stack` on to a container, of an object to `list`.
  absl::Status MoveTo(Node& node, uint32_t Object::*list, size_t first_on_stack);
  absl::Status AppendTo(NodeId target, size_t first_on_stack, Kind kind);
  absl::Status SetIn(NodeId target, size_t first_on_stack);

  static constexpr size_t kSharedNodes = 1024;

  const uint64_t max_nodes_;
  std::unique_ptr<Nodes> nodes_ = std::make_unique<Nodes>();
  std::vector<NodeId> shared_ = std::vector<NodeId>(kSharedNodes, kNoNode);  // by a hash
  std::vector<NodeId> stack_;
  std::vector<size_t> marks_;  // size of the stack when it was set
  absl::flat_hash_map<uint32_t, NodeId> memo_;
};

}  // namespace tessera::ckpt::pickle

#endif  // TESSERA_CONVERT_PICKLE_STACK_MACHINE_H_
