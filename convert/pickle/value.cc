#include "convert/pickle/value.h"

#include <bit>
#include <cmath>
#include <span>

#include "base/text.h"
#include "convert/pickle/nodes.h"
#include "layout/box.h"

namespace tessera::ckpt::pickle {
namespace {

constexpr Node kAbsentNode;
// The limit of a module and of a name; real ones are much shorter.
constexpr size_t kMaxGlobalPartBytes = 1024;

const Node& NodeOf(const Nodes* nodes, NodeId id) {
  return nodes == nullptr ? kAbsentNode : nodes->nodes[id];
}

const Object* ObjectOf(const Nodes* nodes, NodeId id) {
  const Node& node = NodeOf(nodes, id);
  return node.kind == Kind::kObject ? &nodes->objects[node.a] : nullptr;
}

Value ValueOf(const Nodes* nodes, NodeId id) { return id == kNoNode ? Value() : Value(nodes, id); }

Value PartOf(const Nodes* nodes, NodeId id, NodeId Object::*part) {
  const Object* const object = ObjectOf(nodes, id);
  return object == nullptr ? Value() : ValueOf(nodes, object->*part);
}

std::span<const NodeId> ListOf(const Nodes* nodes, uint64_t list) {
  if (list == kNoList) return {};
  return std::span(nodes->list_elements).subspan(nodes->lists[list].begin, nodes->lists[list].size);
}

// Returns the elements of a list, a set or an object.
std::span<const NodeId> ItemsOf(const Nodes* nodes, NodeId id) {
  const Node& node = NodeOf(nodes, id);
  if (node.kind == Kind::kList || node.kind == Kind::kSet) return ListOf(nodes, node.a);
  if (const Object* object = ObjectOf(nodes, id)) return ListOf(nodes, object->items);
  return {};
}

// Returns keys and values in turn, of a dict or an object.
std::span<const NodeId> EntriesOf(const Nodes* nodes, NodeId id) {
  const Node& node = NodeOf(nodes, id);
  if (node.kind == Kind::kDict) return ListOf(nodes, node.a);
  if (const Object* object = ObjectOf(nodes, id)) return ListOf(nodes, object->entries);
  return {};
}

}  // namespace

std::string_view KindName(Kind kind) {
  constexpr std::string_view kNames[] = {
      "nothing", "None", "bool", "int", "float",  "str",    "bytes",        "bytearray",
      "tuple",   "list", "dict", "set", "global", "object", "persistent id"};
  static_assert(std::size(kNames) == static_cast<size_t>(Kind::kPersistentId) + 1);
  return kNames[static_cast<size_t>(kind)];
}

Kind Value::kind() const { return NodeOf(nodes_, id_).kind; }

std::optional<bool> Value::AsBool() const {
  const Node& node = NodeOf(nodes_, id_);
  if (node.kind != Kind::kBool) return std::nullopt;
  return node.a != 0;
}

std::optional<int64_t> Value::AsInt() const {
  const Node& node = NodeOf(nodes_, id_);
  if (node.kind != Kind::kInt || node.place != Place::kInMemory) return std::nullopt;
  return static_cast<int64_t>(node.a);
}

std::optional<uint64_t> Value::AsUint() const {
  const Node& node = NodeOf(nodes_, id_);
  if (node.kind != Kind::kInt || node.place == Place::kInFile) return std::nullopt;
  if (node.place == Place::kInMemory && static_cast<int64_t>(node.a) < 0) return std::nullopt;
  return node.a;
}

std::optional<double> Value::AsFloat() const {
  const Node& node = NodeOf(nodes_, id_);
  if (node.kind != Kind::kFloat) return std::nullopt;
  return std::bit_cast<double>(node.a);
}

std::optional<std::string_view> Value::AsText() const {
  const Node& node = NodeOf(nodes_, id_);
  if (node.kind != Kind::kText || node.place != Place::kInMemory) return std::nullopt;
  return std::string_view(nodes_->text).substr(node.a, node.b);
}

bool Value::IsText(std::string_view text) const { return AsText() == text; }

std::optional<Extent> Value::extent() const {
  const Node& node = NodeOf(nodes_, id_);
  if (node.place != Place::kInFile) return std::nullopt;
  return Extent{node.a, node.b};
}

size_t Value::size() const {
  const Node& node = NodeOf(nodes_, id_);
  if (node.kind == Kind::kTuple) return node.b;
  return ItemsOf(nodes_, id_).size();
}

Value Value::operator[](size_t index) const {
  if (index >= size()) return {};
  const Node& node = NodeOf(nodes_, id_);
  if (node.kind == Kind::kTuple) return {nodes_, nodes_->tuple_elements[node.a + index]};
  return {nodes_, ItemsOf(nodes_, id_)[index]};
}

size_t Value::entry_count() const { return EntriesOf(nodes_, id_).size() / 2; }

std::pair<Value, Value> Value::entry(size_t index) const {
  const std::span<const NodeId> entries = EntriesOf(nodes_, id_);
  if (index >= entries.size() / 2) return {};
  return {Value(nodes_, entries[2 * index]), Value(nodes_, entries[2 * index + 1])};
}

Value Value::Find(std::string_view key) const {
  for (size_t i = entry_count(); i > 0; --i) {
    const auto [name, value] = entry(i - 1);
    if (name.IsText(key)) return value;
  }
  return {};
}

std::string Value::GlobalName() const {
  const Node& node = NodeOf(nodes_, id_);
  if (node.kind != Kind::kGlobal) return "";
  const auto part = [&](NodeId id) {
    return Value(nodes_, id).AsText().value_or("").substr(0, kMaxGlobalPartBytes);
  };
  std::string name(part(static_cast<NodeId>(node.a)));
  return name.append(".").append(part(static_cast<NodeId>(node.b)));
}

bool Value::IsGlobal(std::string_view module_and_name) const {
  const Node& node = NodeOf(nodes_, id_);
  if (node.kind != Kind::kGlobal) return false;
  const std::string_view module = Value(nodes_, node.a).AsText().value_or("");
  const std::string_view name = Value(nodes_, node.b).AsText().value_or("");
  return module_and_name.size() == module.size() + 1 + name.size() &&
         module_and_name.starts_with(module) && module_and_name[module.size()] == '.' &&
         module_and_name.ends_with(name);
}

Value Value::callable() const { return PartOf(nodes_, id_, &Object::callable); }
Value Value::arguments() const { return PartOf(nodes_, id_, &Object::arguments); }
Value Value::keyword_arguments() const { return PartOf(nodes_, id_, &Object::keyword_arguments); }
Value Value::state() const { return PartOf(nodes_, id_, &Object::state); }

bool Value::IsObjectOf(std::string_view module_and_name) const {
  return callable().IsGlobal(module_and_name);
}

Value Value::persistent_id() const {
  const Node& node = NodeOf(nodes_, id_);
  return node.kind == Kind::kPersistentId ? Value(nodes_, node.a) : Value();
}

Pickle::Pickle(std::unique_ptr<const Nodes> nodes) : nodes_(std::move(nodes)) {}
Pickle::Pickle(Pickle&&) noexcept = default;
Pickle& Pickle::operator=(Pickle&&) noexcept = default;
Pickle::~Pickle() = default;

Value Pickle::root() const { return ValueOf(nodes_.get(), nodes_->root); }
uint64_t Pickle::end_offset() const { return nodes_->end_offset; }
uint64_t Pickle::size_bytes() const { return nodes_->end_offset - nodes_->begin_offset; }
size_t Pickle::node_count() const { return nodes_->nodes.size(); }

size_t Pickle::memory_bytes() const {
  return nodes_->nodes.capacity() * sizeof(Node) + nodes_->text.capacity() +
         nodes_->tuple_elements.capacity() * sizeof(NodeId) +
         nodes_->lists.capacity() * sizeof(List) +
         nodes_->list_elements.capacity() * sizeof(NodeId) +
         nodes_->objects.capacity() * sizeof(Object);
}

std::optional<std::string> DecodeLatin1(std::string_view utf8) {
  std::string bytes;
  for (size_t i = 0; i < utf8.size(); ++i) {
    auto character = static_cast<uint8_t>(utf8[i]);
    if (character >= 0x80) {
      const uint8_t next = ++i < utf8.size() ? static_cast<uint8_t>(utf8[i]) : 0;
      if ((character & 0xFE) != 0xC2 || (next & 0xC0) != 0x80) return std::nullopt;
      character = static_cast<uint8_t>(character << 6 | (next & 0x3F));
    }
    bytes.push_back(static_cast<char>(character));
  }
  return bytes;
}

nlohmann::json ScalarToJson(const Value& value) {
  if (const auto truth = value.AsBool()) return *truth;
  if (const auto number = value.AsInt()) return *number;
  if (const auto number = value.AsFloat()) {
    return std::isfinite(*number) ? nlohmann::json(*number) : nlohmann::json();
  }
  const auto text = value.AsText();
  if (text && text->size() > kMaxJsonTextBytes) return {};
  return text && IsValidUtf8(*text) ? nlohmann::json(std::string(*text)) : nlohmann::json();
}

nlohmann::json DictToJson(const Value& dict) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [key, value] : dict.entries()) {
    const auto name = key.AsText();
    if (!name || !IsValidUtf8(*name)) continue;
    const bool is_list = value.is(Kind::kList) || value.is(Kind::kTuple);
    nlohmann::json converted = is_list ? nlohmann::json::array() : ScalarToJson(value);
    if (!converted.is_null()) json[std::string(*name)] = std::move(converted);
  }
  return json;
}

std::optional<std::vector<int64_t>> DimsOf(const Value& value) {
  const Value list = value.IsObjectOf("torch.Size") ? value.arguments()[0] : value;
  const bool is_list = list.is(Kind::kTuple) || list.is(Kind::kList);
  if (!is_list || list.size() > kMaxDims) return std::nullopt;
  std::vector<int64_t> dims;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::optional<int64_t> integer = list[i].AsInt();
    if (!integer) return std::nullopt;
    dims.push_back(*integer);
  }
  return dims;
}

}  // namespace tessera::ckpt::pickle
