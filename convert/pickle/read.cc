#include "convert/pickle/read.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/status_macros.h"
#include "convert/core/reading.h"
#include "convert/pickle/nodes.h"
#include "convert/pickle/stack_machine.h"

namespace tessera::ckpt::pickle {
namespace {

constexpr uint8_t kHighestProtocol = 5;
constexpr uint64_t kBlockBytes = 64 * 1024;

// Runs a pickle's opcodes on the stack machine.
class Reader : private StackMachine {
 public:
  Reader(const ReadableFile& file, Extent within, const ReadOptions& options)
      : StackMachine(options.max_nodes),
        stream_(file, kBlockBytes, within.offset, within.offset + within.length) {}

  absl::StatusOr<Pickle> Run() {
    static const std::array<Opcode, 256> opcodes = MakeOpcodes();
    nodes().begin_offset = stream_.offset();
    while (!stopped_) {
      const uint64_t offset = stream_.offset();
      TESSERA_ASSIGN_OR_RETURN(const auto code, stream_.Number<uint8_t>());
      const Opcode& opcode = opcodes[code];
      if (opcode.run == nullptr) {
        return DataLoss("offset ", offset, ": pickle opcode 0x", absl::Hex(code, absl::kZeroPad2),
                        opcode.name == nullptr ? "" : absl::StrCat(" (", opcode.name, ")"),
                        " is not supported");
      }
      if (const absl::Status status = opcode.run(*this); !status.ok()) {
        return convert::In(absl::StrCat("offset ", offset, ": pickle opcode ", opcode.name),
                           status);
      }
    }
    nodes().end_offset = stream_.offset();
    return Pickle(TakeNodes());
  }

 private:
  using Operation = absl::Status (*)(Reader& reader);
  struct Opcode {
    const char* name = nullptr;
    Operation run = nullptr;
  };

  // Calls a method with these arguments.
  template <auto method, auto... arguments>
  static absl::Status Do(Reader& reader) {
    return (reader.*method)(arguments...);
  }

  static std::array<Opcode, 256> MakeOpcodes() {
    std::array<Opcode, 256> table;
    const auto set = [&](uint8_t code, const char* name, Operation run) {
      table[code] = {name, run};
    };
    set(0x80, "PROTO", Do<&Reader::Proto>);
    set(0x95, "FRAME", Do<&Reader::Frame>);
    set('.', "STOP", Do<&Reader::Stop>);
    set('(', "MARK", Do<&Reader::Mark>);
    set('0', "POP", Do<&Reader::Discard>);
    set('1', "POP_MARK", Do<&Reader::DiscardToMark>);
    set('2', "DUP", Do<&Reader::Duplicate>);

    set('N', "NONE", Do<&Reader::PushConstant, Kind::kNone, 0>);
    set(0x88, "NEWTRUE", Do<&Reader::PushConstant, Kind::kBool, 1>);
    set(0x89, "NEWFALSE", Do<&Reader::PushConstant, Kind::kBool, 0>);
    set('J', "BININT", Do<&Reader::PushInt<uint32_t, true>>);
    set('K', "BININT1", Do<&Reader::PushInt<uint8_t>>);
    set('M', "BININT2", Do<&Reader::PushInt<uint16_t>>);
    set(0x8A, "LONG1", Do<&Reader::PushLong<uint8_t>>);
    set(0x8B, "LONG4", Do<&Reader::PushLong<uint32_t>>);
    set('G', "BINFLOAT", Do<&Reader::PushFloat>);

    set('T', "BINSTRING", Do<&Reader::PushText<uint32_t>>);
    set('U', "SHORT_BINSTRING", Do<&Reader::PushText<uint8_t>>);
    set('X', "BINUNICODE", Do<&Reader::PushText<uint32_t>>);
    set(0x8C, "SHORT_BINUNICODE", Do<&Reader::PushText<uint8_t>>);
    set(0x8D, "BINUNICODE8", Do<&Reader::PushText<uint64_t>>);
    set('B', "BINBYTES", Do<&Reader::PushBytes<uint32_t, Kind::kBytes>>);
    set('C', "SHORT_BINBYTES", Do<&Reader::PushBytes<uint8_t, Kind::kBytes>>);
    set(0x8E, "BINBYTES8", Do<&Reader::PushBytes<uint64_t, Kind::kBytes>>);
    set(0x96, "BYTEARRAY8", Do<&Reader::PushBytes<uint64_t, Kind::kByteArray>>);

    set(')', "EMPTY_TUPLE", Do<&Reader::PushTuple, 0>);
    set(0x85, "TUPLE1", Do<&Reader::PushTuple, 1>);
    set(0x86, "TUPLE2", Do<&Reader::PushTuple, 2>);
    set(0x87, "TUPLE3", Do<&Reader::PushTuple, 3>);
    set('t', "TUPLE", Do<&Reader::PushTupleToMark>);
    set(']', "EMPTY_LIST", Do<&Reader::PushConstant, Kind::kList, kNoList>);
    set('}', "EMPTY_DICT", Do<&Reader::PushConstant, Kind::kDict, kNoList>);
    set(0x8F, "EMPTY_SET", Do<&Reader::PushConstant, Kind::kSet, kNoList>);
    set('l', "LIST", Do<&Reader::PushListToMark, Kind::kList>);
    set('d', "DICT", Do<&Reader::PushListToMark, Kind::kDict>);
    set(0x91, "FROZENSET", Do<&Reader::PushListToMark, Kind::kSet>);
    set('a', "APPEND", Do<&Reader::Append>);
    set('e', "APPENDS", Do<&Reader::AppendToMark, Kind::kList>);
    set(0x90, "ADDITEMS", Do<&Reader::AppendToMark, Kind::kSet>);
    set('s', "SETITEM", Do<&Reader::SetItem>);
    set('u', "SETITEMS", Do<&Reader::SetItemsToMark>);

    set('q', "BINPUT", Do<&Reader::RememberAt<uint8_t>>);
    set('r', "LONG_BINPUT", Do<&Reader::RememberAt<uint32_t>>);
    set(0x94, "MEMOIZE", Do<&Reader::RememberNext>);
    set('h', "BINGET", Do<&Reader::RecallAt<uint8_t>>);
    set('j', "LONG_BINGET", Do<&Reader::RecallAt<uint32_t>>);

    set('c', "GLOBAL", Do<&Reader::PushGlobal>);
    set(0x93, "STACK_GLOBAL", Do<&Reader::PushGlobalFromStack>);
    set('R', "REDUCE", Do<&Reader::Reduce>);
    set(0x81, "NEWOBJ", Do<&Reader::Reduce>);
    set(0x92, "NEWOBJ_EX", Do<&Reader::NewObjectWithKeywords>);
    set('o', "OBJ", Do<&Reader::ObjectToMark>);
    set('b', "BUILD", Do<&Reader::Build>);
    set('Q', "BINPERSID", Do<&Reader::PersistentIdFromStack>);

    // Known, and refused: opcodes of protocols 0 and 1 with an argument in ASCII, and opcodes that
    // mean nothing without the program that wrote them.
    for (const auto& [code, name] : {std::pair('P', "PERSID"),
                                     {'I', "INT"},
                                     {'L', "LONG"},
                                     {'F', "FLOAT"},
                                     {'S', "STRING"},
                                     {'V', "UNICODE"},
                                     {'p', "PUT"},
                                     {'g', "GET"},
                                     {'i', "INST"}}) {
      set(code, name, Do<&Reader::TextForm>);
    }
    set(0x82, "EXT1", nullptr);
    set(0x83, "EXT2", nullptr);
    set(0x84, "EXT4", nullptr);
    set(0x97, "NEXT_BUFFER", nullptr);
    set(0x98, "READONLY_BUFFER", nullptr);
    return table;
  }

  absl::Status TextForm() {
    return Wrong(
        "one of the text forms of pickle protocols 0 and 1, which are not supported: write the "
        "file with protocol 2 or later");
  }

  // Handle opcodes with arguments in the pickle, in the order of the table.
  absl::Status Proto() {
    TESSERA_ASSIGN_OR_RETURN(const auto protocol, stream_.Number<uint8_t>());
    if (protocol <= kHighestProtocol) return absl::OkStatus();
    return Wrong("protocol ", protocol, ", at most ", kHighestProtocol, " is known");
  }

  // Frames tell a reader how much to read at once. The stream has blocks of its own.
  absl::Status Frame() {
    TESSERA_ASSIGN_OR_RETURN(const auto length, stream_.Number<uint64_t>());
    if (length <= stream_.left()) return absl::OkStatus();
    return Wrong("a frame of ", length, " bytes, ", stream_.left(), " are left");
  }

  absl::Status Stop() {
    TESSERA_ASSIGN_OR_RETURN(nodes().root, Pop());
    stopped_ = true;
    return absl::OkStatus();
  }

  template <typename T, bool is_signed = false>
  absl::Status PushInt() {
    TESSERA_ASSIGN_OR_RETURN(const T number, stream_.Number<T>());
    int64_t value = number;
    if (is_signed) value = static_cast<int32_t>(number);
    return Push({.kind = Kind::kInt, .a = static_cast<uint64_t>(value)});
  }

  // Pushes a number in two's complement that is as short as possible.
  template <typename Length>
  absl::Status PushLong() {
    TESSERA_ASSIGN_OR_RETURN(const Length length, stream_.Number<Length>());
    const uint64_t offset = stream_.offset();
    if (length > sizeof(uint64_t) + 1) {
      TESSERA_RETURN_IF_ERROR(stream_.Skip(length));
      return Push({.kind = Kind::kInt, .place = Place::kInFile, .b = length, .a = offset});
    }
    TESSERA_ASSIGN_OR_RETURN(const std::string_view bytes, stream_.Take(length));
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

  absl::Status PushFloat() {
    TESSERA_ASSIGN_OR_RETURN(const uint64_t bits, stream_.Number<uint64_t>());
    return Push({.kind = Kind::kFloat, .a = __builtin_bswap64(bits)});  // big-endian in the file
  }

  template <typename Length>
  absl::Status PushText() {
    TESSERA_ASSIGN_OR_RETURN(const Length length, stream_.Number<Length>());
    if (length > kMaxTextBytes) {
      const uint64_t offset = stream_.offset();
      TESSERA_RETURN_IF_ERROR(stream_.Skip(length));
      return Push({.kind = Kind::kText, .place = Place::kInFile, .b = length, .a = offset});
    }
    const Node node = {.kind = Kind::kText, .b = length, .a = nodes().text.size()};
    TESSERA_ASSIGN_OR_RETURN(const std::string_view text, stream_.Take(length));
    nodes().text += text;
    return Push(node);
  }

  template <typename Length, Kind kind>
  absl::Status PushBytes() {
    TESSERA_ASSIGN_OR_RETURN(const Length length, stream_.Number<Length>());
    const uint64_t offset = stream_.offset();
    TESSERA_RETURN_IF_ERROR(stream_.Skip(length));
    return Push({.kind = kind, .place = Place::kInFile, .b = length, .a = offset});
  }

  template <typename T>
  absl::Status RememberAt() {
    TESSERA_ASSIGN_OR_RETURN(const T index, stream_.Number<T>());
    return Remember(index);
  }

  template <typename T>
  absl::Status RecallAt() {
    TESSERA_ASSIGN_OR_RETURN(const T index, stream_.Number<T>());
    return Recall(index);
  }

  // Reads the text before the next '\n', which is skipped.
  absl::StatusOr<std::string> ReadLine() {
    std::string line;
    while (line.size() <= kMaxTextBytes) {
      TESSERA_ASSIGN_OR_RETURN(const std::string_view byte, stream_.Take(1));
      if (byte == "\n") return line;
      line += byte;
    }
    return Wrong("a line of more than ", kMaxTextBytes, " bytes");
  }

  absl::Status PushGlobal() {
    TESSERA_ASSIGN_OR_RETURN(const std::string module, ReadLine());
    TESSERA_ASSIGN_OR_RETURN(const std::string name, ReadLine());
    TESSERA_ASSIGN_OR_RETURN(const NodeId module_id, AddText(module));
    TESSERA_ASSIGN_OR_RETURN(const NodeId name_id, AddText(name));
    return Push({.kind = Kind::kGlobal, .b = name_id, .a = module_id});
  }

  FileCursor stream_;
  bool stopped_ = false;
};

}  // namespace

absl::StatusOr<Pickle> ReadPickle(const ReadableFile& file, Extent within,
                                  const ReadOptions& options) {
  if (within.offset > file.size_bytes() || within.length > file.size_bytes() - within.offset) {
    return DataLoss("a pickle of ", within.length, " bytes at offset ", within.offset,
                    " in a file of ", file.size_bytes(), " bytes");
  }
  if (within.offset + within.length > kMaxExtent) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a pickle in a file of ", file.size_bytes(), " bytes"));
  }
  return Reader(file, within, options).Run();
}

}  // namespace tessera::ckpt::pickle
