#include "convert/pickle/stack_machine.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::ckpt::pickle {
namespace {

constexpr uint64_t kMaxListElements = uint64_t{1} << 31;

}  // namespace

absl::StatusOr<NodeId> StackMachine::Add(const Node& node) {
  if (nodes_->nodes.size() >= max_nodes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", max_nodes_, " objects in one pickle"));
  }
  nodes_->nodes.push_back(node);
  return static_cast<NodeId>(nodes_->nodes.size() - 1);
}

absl::Status StackMachine::Push(const Node& node) {
  TESSERA_ASSIGN_OR_RETURN(const NodeId id, node.kind == Kind::kInt ? AddShared(node) : Add(node));
  stack_.push_back(id);
  return absl::OkStatus();
}

absl::StatusOr<NodeId> StackMachine::AddText(std::string_view text) {
  const Node node = {.kind = Kind::kText, .b = text.size(), .a = nodes_->text.size()};
  nodes_->text.append(text);
  return Add(node);
}

// Numbers and empty tuples that are equal are one node, where they are not far apart.
absl::StatusOr<NodeId> StackMachine::AddShared(const Node& node) {
  NodeId& known = shared_[(node.a * 31 + static_cast<uint64_t>(node.kind)) % kSharedNodes];
  if (known < nodes_->nodes.size()) {
    const Node& other = NodeAt(known);
    if (other.kind == node.kind && other.place == node.place && other.a == node.a &&
        other.b == node.b) {
      return known;
    }
  }
  TESSERA_ASSIGN_OR_RETURN(known, Add(node));
  return known;
}

absl::StatusOr<uint32_t> StackMachine::Extend(uint32_t list, size_t first_on_stack) {
  if (list == kNoList) {
    list = static_cast<uint32_t>(nodes_->lists.size());
    nodes_->lists.emplace_back();
  }
  List& known = nodes_->lists[list];
  std::vector<NodeId>& elements = nodes_->list_elements;
  const uint64_t added = stack_.size() - first_on_stack;
  if (known.size + added > kMaxListElements) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", kMaxListElements, " elements in one list"));
  }
  const bool is_last = known.begin + known.capacity == elements.size();
  const uint64_t needed = known.size + added;
  if (needed > known.capacity && !is_last) {
    // It may grow again: a list that moves gets as much space again as it has elements.
    const auto old = static_cast<ptrdiff_t>(known.begin);
    known.begin = elements.size();
    known.capacity = static_cast<uint32_t>(needed + known.size);
    elements.resize(known.begin + known.capacity);
    std::copy_n(elements.begin() + old, known.size,
                elements.begin() + static_cast<ptrdiff_t>(known.begin));
  } else if (needed > known.capacity) {
    known.capacity = static_cast<uint32_t>(needed);
    elements.resize(known.begin + known.capacity);
  }
  std::copy(stack_.begin() + static_cast<ptrdiff_t>(first_on_stack), stack_.end(),
            elements.begin() + static_cast<ptrdiff_t>(known.begin + known.size));
  known.size = static_cast<uint32_t>(needed);
  return list;
}

absl::StatusOr<NodeId> StackMachine::AddTuple(size_t first_on_stack) {
  const auto first = stack_.begin() + static_cast<ptrdiff_t>(first_on_stack);
  const Node node = {.kind = Kind::kTuple,
                     .b = static_cast<uint64_t>(stack_.end() - first),
                     .a = nodes_->tuple_elements.size()};
  if (first == stack_.end()) return AddShared({.kind = Kind::kTuple});
  nodes_->tuple_elements.insert(nodes_->tuple_elements.end(), first, stack_.end());
  stack_.erase(first, stack_.end());
  return Add(node);
}

absl::Status StackMachine::PushObject(NodeId callable, NodeId arguments, NodeId keyword_arguments) {
  const Node node = {.kind = Kind::kObject, .a = nodes_->objects.size()};
  nodes_->objects.push_back(
      {.callable = callable, .arguments = arguments, .keyword_arguments = keyword_arguments});
  return Push(node);
}

absl::StatusOr<NodeId> StackMachine::Top() {
  if (stack_.size() <= floor()) return Wrong("nothing is on the stack");
  return stack_.back();
}

absl::StatusOr<NodeId> StackMachine::Pop() {
  TESSERA_ASSIGN_OR_RETURN(const NodeId top, Top());
  stack_.pop_back();
  return top;
}

absl::StatusOr<size_t> StackMachine::PopMark() {
  if (marks_.empty()) return Wrong("no mark is on the stack");
  const size_t first = marks_.back();
  marks_.pop_back();
  return first;
}

absl::Status StackMachine::Mark() {
  marks_.push_back(stack_.size());
  return absl::OkStatus();
}

absl::Status StackMachine::Discard() {
  if (!marks_.empty() && marks_.back() == stack_.size()) {
    marks_.pop_back();
    return absl::OkStatus();
  }
  return Pop().status();
}

absl::Status StackMachine::DiscardToMark() {
  TESSERA_ASSIGN_OR_RETURN(const size_t first, PopMark());
  stack_.resize(first);
  return absl::OkStatus();
}

absl::Status StackMachine::Duplicate() {
  TESSERA_ASSIGN_OR_RETURN(const NodeId top, Top());
  stack_.push_back(top);
  return absl::OkStatus();
}

absl::Status StackMachine::PushTupleToMark() {
  TESSERA_ASSIGN_OR_RETURN(const size_t first, PopMark());
  TESSERA_ASSIGN_OR_RETURN(const NodeId tuple, AddTuple(first));
  stack_.push_back(tuple);
  return absl::OkStatus();
}

absl::Status StackMachine::PushTuple(size_t count) {
  if (stack_.size() - floor() < count) return Wrong("too little is on the stack");
  TESSERA_ASSIGN_OR_RETURN(const NodeId tuple, AddTuple(stack_.size() - count));
  stack_.push_back(tuple);
  return absl::OkStatus();
}

absl::Status StackMachine::PushListToMark(Kind kind) {
  TESSERA_ASSIGN_OR_RETURN(const size_t first, PopMark());
  TESSERA_ASSIGN_OR_RETURN(const NodeId list, Add({.kind = kind, .a = kNoList}));
  if (kind == Kind::kDict) {
    TESSERA_RETURN_IF_ERROR(SetIn(list, first));
  } else {
    TESSERA_RETURN_IF_ERROR(AppendTo(list, first, kind));
  }
  stack_.push_back(list);
  return absl::OkStatus();
}

absl::Status StackMachine::MoveTo(Node& node, uint32_t Object::*list, size_t first_on_stack) {
  if (first_on_stack == stack_.size()) return absl::OkStatus();
  if (node.kind == Kind::kObject) {
    uint32_t& own = nodes_->objects[node.a].*list;
    TESSERA_ASSIGN_OR_RETURN(own, Extend(own, first_on_stack));
  } else {
    TESSERA_ASSIGN_OR_RETURN(node.a, Extend(static_cast<uint32_t>(node.a), first_on_stack));
  }
  stack_.resize(first_on_stack);
  return absl::OkStatus();
}

absl::Status StackMachine::AppendTo(NodeId target, size_t first_on_stack, Kind kind) {
  Node& node = NodeAt(target);
  const bool fits = node.kind == Kind::kObject || node.kind == kind;
  if (!fits) return Wrong("cannot add to a ", KindName(node.kind));
  return MoveTo(node, &Object::items, first_on_stack);
}

absl::Status StackMachine::SetIn(NodeId target, size_t first_on_stack) {
  Node& node = NodeAt(target);
  if (node.kind != Kind::kDict && node.kind != Kind::kObject) {
    return Wrong("cannot set an item of a ", KindName(node.kind));
  }
  if ((stack_.size() - first_on_stack) % 2 != 0) return Wrong("a key without a value");
  return MoveTo(node, &Object::entries, first_on_stack);
}

absl::Status StackMachine::Append() {
  if (stack_.size() - floor() < 2) return Wrong("too little is on the stack");
  return AppendTo(stack_[stack_.size() - 2], stack_.size() - 1, Kind::kList);
}

absl::Status StackMachine::AppendToMark(Kind kind) {
  TESSERA_ASSIGN_OR_RETURN(const size_t first, PopMark());
  if (first <= floor()) return Wrong("nothing is on the stack");
  return AppendTo(stack_[first - 1], first, kind);
}

absl::Status StackMachine::SetItem() {
  if (stack_.size() - floor() < 3) return Wrong("too little is on the stack");
  return SetIn(stack_[stack_.size() - 3], stack_.size() - 2);
}

absl::Status StackMachine::SetItemsToMark() {
  TESSERA_ASSIGN_OR_RETURN(const size_t first, PopMark());
  if (first <= floor()) return Wrong("nothing is on the stack");
  return SetIn(stack_[first - 1], first);
}

absl::Status StackMachine::Remember(uint64_t index) {
  TESSERA_ASSIGN_OR_RETURN(const NodeId top, Top());
  memo_[static_cast<uint32_t>(index)] = top;
  return absl::OkStatus();
}

absl::Status StackMachine::Recall(uint64_t index) {
  const auto found = memo_.find(static_cast<uint32_t>(index));
  if (found == memo_.end()) return Wrong("no object has the number ", index);
  stack_.push_back(found->second);
  return absl::OkStatus();
}

absl::Status StackMachine::PushGlobalFromStack() {
  TESSERA_ASSIGN_OR_RETURN(const NodeId name, Pop());
  TESSERA_ASSIGN_OR_RETURN(const NodeId module, Pop());
  if (NodeAt(name).kind != Kind::kText || NodeAt(module).kind != Kind::kText) {
    return Wrong("module and name are not texts");
  }
  return Push({.kind = Kind::kGlobal, .b = name, .a = module});
}

absl::Status StackMachine::Reduce() {
  TESSERA_ASSIGN_OR_RETURN(const NodeId arguments, Pop());
  TESSERA_ASSIGN_OR_RETURN(const NodeId callable, Pop());
  return PushObject(callable, arguments);
}

absl::Status StackMachine::NewObjectWithKeywords() {
  TESSERA_ASSIGN_OR_RETURN(const NodeId keyword_arguments, Pop());
  TESSERA_ASSIGN_OR_RETURN(const NodeId arguments, Pop());
  TESSERA_ASSIGN_OR_RETURN(const NodeId callable, Pop());
  return PushObject(callable, arguments, keyword_arguments);
}

absl::Status StackMachine::ObjectToMark() {
  TESSERA_ASSIGN_OR_RETURN(const size_t first, PopMark());
  if (first == stack_.size()) return Wrong("nothing is on the stack");
  const NodeId callable = stack_[first];
  TESSERA_ASSIGN_OR_RETURN(const NodeId arguments, AddTuple(first + 1));
  stack_.pop_back();
  return PushObject(callable, arguments);
}

absl::Status StackMachine::Build() {
  TESSERA_ASSIGN_OR_RETURN(const NodeId state, Pop());
  TESSERA_ASSIGN_OR_RETURN(const NodeId target, Top());
  const Node& node = NodeAt(target);
  if (node.kind != Kind::kObject) return Wrong("a ", KindName(node.kind), " has no state to set");
  Object& object = nodes_->objects[node.a];
  if (object.state != kNoNode) return Wrong("the state of an object is set twice");
  object.state = state;
  return absl::OkStatus();
}

absl::Status StackMachine::PersistentIdFromStack() {
  TESSERA_ASSIGN_OR_RETURN(const NodeId id, Pop());
  return Push({.kind = Kind::kPersistentId, .a = id});
}

}  // namespace tessera::ckpt::pickle
