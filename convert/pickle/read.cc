#include "convert/pickle/read.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/status_macros.h"
#include "convert/pickle/byte_stream.h"
#include "convert/pickle/nodes.h"
#include "convert/pickle/stack_machine.h"
#include "convert/pickle/text_forms.h"

namespace tessera::ckpt::pickle {
namespace {

constexpr uint8_t kHighestProtocol = 5;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// Runs a pickle's opcodes on the stack machine.
class Reader : private StackMachine {
 public:
  Reader(const ReadableFile& file, Extent within, const ReadOptions& options)
      : StackMachine(options.max_nodes), stream_(file, within) {}

  absl::StatusOr<Pickle> Run();

 private:
  using Operation = absl::Status (Reader::*)();
  struct Opcode {
    const char* name = nullptr;
    Operation run = nullptr;
  };
  static std::array<Opcode, 256> MakeOpcodes();

  // Little-endian number of that many bytes.
  template <typename T>
  absl::StatusOr<T> ReadNumber() {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view bytes, stream_.ReadView(sizeof(T)));
    return LoadLittleEndian<T>(bytes.data());
  }
  absl::StatusOr<std::string> ReadLine() { return stream_.ReadLine(kMaxTextBytes); }

  // Opcodes with arguments in the pickle, in the order of the table.
  absl::Status Proto();
  absl::Status Frame();
  absl::Status Stop();
  template <typename T, bool is_signed = false>
  absl::Status PushInt();
  absl::Status PushDecimal(std::string_view digits, uint64_t offset);
  absl::Status PushIntLine();
  absl::Status PushLongLine();
  template <typename Length>
  absl::Status PushLong();
  absl::Status PushFloat();
  absl::Status PushFloatLine();
  template <typename Length>
  absl::Status PushText();
  absl::Status PushQuotedLine();
  absl::Status PushUnicodeLine();
  template <typename Length>
  absl::Status PushBytes();
  absl::StatusOr<uint64_t> ReadIndexLine();
  absl::Status RememberLine();
  absl::Status RecallLine();
  template <typename T>
  absl::Status RememberAt();
  template <typename T>
  absl::Status RecallAt();
  absl::StatusOr<NodeId> AddGlobalLines();
  absl::Status PushGlobalLines();
  absl::Status Instance();
  absl::Status PersistentIdLine();

  ByteStream stream_;
  bool stopped_ = false;
};

std::array<Reader::Opcode, 256> Reader::MakeOpcodes() {
  std::array<Opcode, 256> table;
  const auto set = [&](uint8_t code, const char* name, Operation run) {
    table[code] = {name, run};
  };
  set(0x80, "PROTO", &Reader::Proto);
  set(0x95, "FRAME", &Reader::Frame);
  set('.', "STOP", &Reader::Stop);
  set('(', "MARK", &Reader::Mark);
  set('0', "POP", &Reader::Discard);
  set('1', "POP_MARK", &Reader::DiscardToMark);
  set('2', "DUP", &Reader::Duplicate);

  set('N', "NONE", &Reader::PushConstant<Kind::kNone>);
  set(0x88, "NEWTRUE", &Reader::PushConstant<Kind::kBool, 1>);
  set(0x89, "NEWFALSE", &Reader::PushConstant<Kind::kBool, 0>);
  set('J', "BININT", &Reader::PushInt<uint32_t, true>);
  set('K', "BININT1", &Reader::PushInt<uint8_t>);
  set('M', "BININT2", &Reader::PushInt<uint16_t>);
  set('I', "INT", &Reader::PushIntLine);
  set('L', "LONG", &Reader::PushLongLine);
  set(0x8A, "LONG1", &Reader::PushLong<uint8_t>);
  set(0x8B, "LONG4", &Reader::PushLong<uint32_t>);
  set('G', "BINFLOAT", &Reader::PushFloat);
  set('F', "FLOAT", &Reader::PushFloatLine);

  set('S', "STRING", &Reader::PushQuotedLine);
  set('T', "BINSTRING", &Reader::PushText<uint32_t>);
  set('U', "SHORT_BINSTRING", &Reader::PushText<uint8_t>);
  set('V', "UNICODE", &Reader::PushUnicodeLine);
  set('X', "BINUNICODE", &Reader::PushText<uint32_t>);
  set(0x8C, "SHORT_BINUNICODE", &Reader::PushText<uint8_t>);
  set(0x8D, "BINUNICODE8", &Reader::PushText<uint64_t>);
  set('B', "BINBYTES", &Reader::PushBytes<uint32_t>);
  set('C', "SHORT_BINBYTES", &Reader::PushBytes<uint8_t>);
  set(0x8E, "BINBYTES8", &Reader::PushBytes<uint64_t>);
  set(0x96, "BYTEARRAY8", &Reader::PushBytes<uint64_t>);

  set(')', "EMPTY_TUPLE", &Reader::PushTuple<0>);
  set(0x85, "TUPLE1", &Reader::PushTuple<1>);
  set(0x86, "TUPLE2", &Reader::PushTuple<2>);
  set(0x87, "TUPLE3", &Reader::PushTuple<3>);
  set('t', "TUPLE", &Reader::PushTupleToMark);
  set(']', "EMPTY_LIST", &Reader::PushConstant<Kind::kList, kNoList>);
  set('}', "EMPTY_DICT", &Reader::PushConstant<Kind::kDict, kNoList>);
  set(0x8F, "EMPTY_SET", &Reader::PushConstant<Kind::kSet, kNoList>);
  set('l', "LIST", &Reader::PushListToMark<Kind::kList>);
  set('d', "DICT", &Reader::PushListToMark<Kind::kDict>);
  set(0x91, "FROZENSET", &Reader::PushListToMark<Kind::kSet>);
  set('a', "APPEND", &Reader::Append);
  set('e', "APPENDS", &Reader::AppendToMark<Kind::kList>);
  set(0x90, "ADDITEMS", &Reader::AppendToMark<Kind::kSet>);
  set('s', "SETITEM", &Reader::SetItem);
  set('u', "SETITEMS", &Reader::SetItemsToMark);

  set('p', "PUT", &Reader::RememberLine);
  set('q', "BINPUT", &Reader::RememberAt<uint8_t>);
  set('r', "LONG_BINPUT", &Reader::RememberAt<uint32_t>);
  set(0x94, "MEMOIZE", &Reader::RememberNext);
  set('g', "GET", &Reader::RecallLine);
  set('h', "BINGET", &Reader::RecallAt<uint8_t>);
  set('j', "LONG_BINGET", &Reader::RecallAt<uint32_t>);

  set('c', "GLOBAL", &Reader::PushGlobalLines);
  set(0x93, "STACK_GLOBAL", &Reader::PushGlobalFromStack);
  set('R', "REDUCE", &Reader::Reduce);
  set(0x81, "NEWOBJ", &Reader::Reduce);
  set(0x92, "NEWOBJ_EX", &Reader::NewObjectWithKeywords);
  set('i', "INST", &Reader::Instance);
  set('o', "OBJ", &Reader::ObjectToMark);
  set('b', "BUILD", &Reader::Build);
  set('P', "PERSID", &Reader::PersistentIdLine);
  set('Q', "BINPERSID", &Reader::PersistentIdFromStack);

  // Known, and refused.
  set(0x82, "EXT1", nullptr);
  set(0x83, "EXT2", nullptr);
  set(0x84, "EXT4", nullptr);
  set(0x97, "NEXT_BUFFER", nullptr);
  set(0x98, "READONLY_BUFFER", nullptr);
  return table;
}

absl::StatusOr<Pickle> Reader::Run() {
  static const std::array<Opcode, 256> opcodes = MakeOpcodes();
  nodes().begin_offset = stream_.position();
  while (!stopped_) {
    const uint64_t offset = stream_.position();
    TESSERA_ASSIGN_OR_RETURN(const uint8_t code, stream_.ReadByte());
    const Opcode& opcode = opcodes[code];
    if (opcode.run == nullptr) {
      return absl::DataLossError(absl::StrCat(
          "offset ", offset, ": pickle opcode 0x", absl::Hex(code, absl::kZeroPad2),
          opcode.name == nullptr ? "" : absl::StrCat(" (", opcode.name, ")"), " is not supported"));
    }
    const absl::Status status = (this->*opcode.run)();
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("offset ", offset, ": pickle opcode ",
                                                      opcode.name, ": ", status.message()));
    }
  }
  nodes().end_offset = stream_.position();
  return Pickle(TakeNodes());
}

absl::Status Reader::Proto() {
  TESSERA_ASSIGN_OR_RETURN(const uint8_t protocol, stream_.ReadByte());
  if (protocol <= kHighestProtocol) return absl::OkStatus();
  return Wrong(absl::StrCat("protocol ", protocol, ", at most ", kHighestProtocol, " is known"));
}

// Frames tell a reader how much to read at once. The stream has blocks of its own.
absl::Status Reader::Frame() {
  TESSERA_ASSIGN_OR_RETURN(const uint64_t length, ReadNumber<uint64_t>());
  if (length <= stream_.remaining()) return absl::OkStatus();
  return Wrong(absl::StrCat("a frame of ", length, " bytes, ", stream_.remaining(), " are left"));
}

absl::Status Reader::Stop() {
  TESSERA_ASSIGN_OR_RETURN(nodes().root, Pop());
  stopped_ = true;
  return absl::OkStatus();
}

template <typename T, bool is_signed>
absl::Status Reader::PushInt() {
  TESSERA_ASSIGN_OR_RETURN(const T number, ReadNumber<T>());
  int64_t value = number;
  if (is_signed) value = static_cast<int32_t>(number);
  return Push({.kind = Kind::kInt, .a = static_cast<uint64_t>(value)});
}

absl::Status Reader::PushDecimal(std::string_view digits, uint64_t offset) {
  int64_t value = 0;
  if (absl::SimpleAtoi(View(digits), &value)) {
    return Push({.kind = Kind::kInt, .a = static_cast<uint64_t>(value)});
  }
  uint64_t large = 0;
  if (absl::SimpleAtoi(View(digits), &large)) {
    return Push({.kind = Kind::kInt, .place = Place::kUnsigned, .a = large});
  }
  const size_t sign = digits.starts_with('-') ? 1 : 0;
  if (digits.size() == sign || digits.find_first_not_of("0123456789", sign) != digits.npos) {
    return Wrong("no decimal number");
  }
  return Push({.kind = Kind::kInt, .place = Place::kInFile, .b = digits.size(), .a = offset});
}

// Protocol 0 and 1 write the bools as 00 and 01.
absl::Status Reader::PushIntLine() {
  const uint64_t offset = stream_.position();
  TESSERA_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  if (line == "00" || line == "01") return Push({.kind = Kind::kBool, .a = line == "01"});
  return PushDecimal(line, offset);
}

absl::Status Reader::PushLongLine() {
  const uint64_t offset = stream_.position();
  TESSERA_ASSIGN_OR_RETURN(std::string line, ReadLine());
  if (line.ends_with('L')) line.pop_back();
  return PushDecimal(line, offset);
}

// Two's complement, as short as possible.
template <typename Length>
absl::Status Reader::PushLong() {
  TESSERA_ASSIGN_OR_RETURN(const Length length, ReadNumber<Length>());
  const uint64_t offset = stream_.position();
  if (length > sizeof(uint64_t) + 1) {
    TESSERA_RETURN_IF_ERROR(stream_.Skip(length));
    return Push({.kind = Kind::kInt, .place = Place::kInFile, .b = length, .a = offset});
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string_view bytes, stream_.ReadView(length));
  const bool negative = !bytes.empty() && static_cast<int8_t>(bytes.back()) < 0;
  std::array<char, sizeof(uint64_t) + 1> extended;
  extended.fill(negative ? '\xFF' : '\0');
  std::copy(bytes.begin(), bytes.end(), extended.begin());
  const auto value = LoadLittleEndian<uint64_t>(extended.data());
  const char above = extended.back();
  if (above == (static_cast<int64_t>(value) < 0 ? '\xFF' : '\0')) {
    return Push({.kind = Kind::kInt, .a = value});
  }
  if (above == 0) return Push({.kind = Kind::kInt, .place = Place::kUnsigned, .a = value});
  return Push({.kind = Kind::kInt, .place = Place::kInFile, .b = length, .a = offset});
}

absl::Status Reader::PushFloat() {
  TESSERA_ASSIGN_OR_RETURN(const uint64_t bits, ReadNumber<uint64_t>());
  return Push({.kind = Kind::kFloat, .a = __builtin_bswap64(bits)});  // big-endian in the file
}

absl::Status Reader::PushFloatLine() {
  TESSERA_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  double value = 0;
  if (!absl::SimpleAtod(line, &value)) return Wrong("no number");
  return Push({.kind = Kind::kFloat, .a = std::bit_cast<uint64_t>(value)});
}

template <typename Length>
absl::Status Reader::PushText() {
  TESSERA_ASSIGN_OR_RETURN(const Length length, ReadNumber<Length>());
  if (length > kMaxTextBytes) {
    const uint64_t offset = stream_.position();
    TESSERA_RETURN_IF_ERROR(stream_.Skip(length));
    return Push({.kind = Kind::kText, .place = Place::kInFile, .b = length, .a = offset});
  }
  const Node node = {.kind = Kind::kText, .b = length, .a = nodes().text.size()};
  TESSERA_RETURN_IF_ERROR(stream_.ReadInto(length, nodes().text));
  return Push(node);
}

absl::Status Reader::PushQuotedLine() {
  TESSERA_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  const std::optional<std::string> text = DecodeQuoted(line);
  if (!text) return Wrong("no text in quotes");
  TESSERA_ASSIGN_OR_RETURN(const NodeId id, AddText(*text));
  PushId(id);
  return absl::OkStatus();
}

absl::Status Reader::PushUnicodeLine() {
  TESSERA_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  const std::optional<std::string> text = DecodeRawUnicodeEscape(line);
  if (!text) return Wrong("a malformed escape");
  TESSERA_ASSIGN_OR_RETURN(const NodeId id, AddText(*text));
  PushId(id);
  return absl::OkStatus();
}

template <typename Length>
absl::Status Reader::PushBytes() {
  TESSERA_ASSIGN_OR_RETURN(const Length length, ReadNumber<Length>());
  const uint64_t offset = stream_.position();
  TESSERA_RETURN_IF_ERROR(stream_.Skip(length));
  return Push({.kind = Kind::kBytes, .place = Place::kInFile, .b = length, .a = offset});
}

absl::StatusOr<uint64_t> Reader::ReadIndexLine() {
  TESSERA_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  uint32_t index = 0;
  if (!absl::SimpleAtoi(line, &index)) return Wrong("no number of an object");
  return index;
}

absl::Status Reader::RememberLine() {
  TESSERA_ASSIGN_OR_RETURN(const uint64_t index, ReadIndexLine());
  return Remember(index);
}

absl::Status Reader::RecallLine() {
  TESSERA_ASSIGN_OR_RETURN(const uint64_t index, ReadIndexLine());
  return Recall(index);
}

template <typename T>
absl::Status Reader::RememberAt() {
  TESSERA_ASSIGN_OR_RETURN(const T index, ReadNumber<T>());
  return Remember(index);
}

template <typename T>
absl::Status Reader::RecallAt() {
  TESSERA_ASSIGN_OR_RETURN(const T index, ReadNumber<T>());
  return Recall(index);
}

absl::StatusOr<NodeId> Reader::AddGlobalLines() {
  TESSERA_ASSIGN_OR_RETURN(const std::string module, ReadLine());
  TESSERA_ASSIGN_OR_RETURN(const std::string name, ReadLine());
  TESSERA_ASSIGN_OR_RETURN(const NodeId module_id, AddText(module));
  TESSERA_ASSIGN_OR_RETURN(const NodeId name_id, AddText(name));
  return Add({.kind = Kind::kGlobal, .b = name_id, .a = module_id});
}

absl::Status Reader::PushGlobalLines() {
  TESSERA_ASSIGN_OR_RETURN(const NodeId global, AddGlobalLines());
  PushId(global);
  return absl::OkStatus();
}

absl::Status Reader::Instance() {
  TESSERA_ASSIGN_OR_RETURN(const size_t first, PopMark());
  TESSERA_ASSIGN_OR_RETURN(const NodeId arguments, AddTuple(first));
  TESSERA_ASSIGN_OR_RETURN(const NodeId callable, AddGlobalLines());
  return PushObject(callable, arguments);
}

absl::Status Reader::PersistentIdLine() {
  TESSERA_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  TESSERA_ASSIGN_OR_RETURN(const NodeId id, AddText(line));
  return Push({.kind = Kind::kPersistentId, .a = id});
}

}  // namespace

absl::StatusOr<Pickle> ReadPickle(const ReadableFile& file, Extent within,
                                  const ReadOptions& options) {
  if (within.offset > file.size_bytes() || within.length > file.size_bytes() - within.offset) {
    return absl::DataLossError(absl::StrCat("a pickle of ", within.length, " bytes at offset ",
                                            within.offset, " in a file of ", file.size_bytes(),
                                            " bytes"));
  }
  if (within.offset + within.length > kMaxExtent) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a pickle in a file of ", file.size_bytes(), " bytes"));
  }
  return Reader(file, within, options).Run();
}

}  // namespace tessera::ckpt::pickle
