#include "storage/s3/xml.h"

#include <pugixml.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera::s3 {
namespace {

// Returns the text of a child, empty if it is missing.
std::string Text(const pugi::xml_node& node, const char* child) {
  return node.child(child).text().as_string();
}

// Returns the root element if it has that name; otherwise null.
pugi::xml_node Root(pugi::xml_document& document, std::string_view body, const char* name) {
  if (!document.load_buffer(body.data(), body.size(),
                            pugi::parse_default | pugi::parse_ws_pcdata)) {
    return {};
  }
  return document.child(name);
}

absl::Status Unexpected(const char* name, std::string_view body) {
  return absl::UnavailableError(absl::StrCat("the answer is no ", name, ": ",
                                             absl::CHexEscape(std::string(body.substr(0, 100)))));
}

// A listing whose EncodingType is "url" has percent-encoded keys, as XML cannot hold every byte.
std::string Decode(std::string_view text, bool encoded) {
  if (!encoded) return std::string(text);
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_hex = [&](size_t at) { return absl::ascii_isxdigit(text[at]); };
    if (text[i] == '%' && i + 2 < text.size() && is_hex(i + 1) && is_hex(i + 2)) {
      decoded += absl::HexStringToBytes(std::string(text.substr(i + 1, 2)));
      i += 2;
    } else {
      decoded += text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

std::string ToString(const pugi::xml_document& document) {
  std::ostringstream text;
  document.save(text, "", pugi::format_raw | pugi::format_no_declaration);
  return text.str();
}

void AddText(pugi::xml_node node, const char* name, const std::string& text) {
  node.append_child(name).append_child(pugi::node_pcdata).set_value(text.c_str());
}

ErrorDocument ToError(const pugi::xml_node& node) {
  return {Text(node, "Code"), Text(node, "Message"), Text(node, "Region")};
}

}  // namespace

std::optional<ErrorDocument> ParseError(std::string_view body) {
  pugi::xml_document document;
  const pugi::xml_node error = Root(document, body, "Error");
  if (!error) return std::nullopt;
  return ToError(error);
}

absl::StatusOr<ListPage> ParseListPage(std::string_view body) {
  pugi::xml_document document;
  const pugi::xml_node root = Root(document, body, "ListBucketResult");
  if (!root) return Unexpected("ListBucketResult", body);
  const bool encoded = Text(root, "EncodingType") == "url";
  ListPage page;
  for (const pugi::xml_node& node : root.children("Contents")) {
    ListPage::Object object = {.key = Decode(Text(node, "Key"), encoded)};
    if (!absl::SimpleAtoi(Text(node, "Size"), &object.size_bytes)) {
      return Unexpected("ListBucketResult", body);
    }
    page.objects.push_back(std::move(object));
  }
  for (const pugi::xml_node& node : root.children("CommonPrefixes")) {
    page.prefixes.push_back(Decode(Text(node, "Prefix"), encoded));
  }
  if (Text(root, "IsTruncated") != "true") return page;
  page.next_token = Text(root, "NextContinuationToken");
  if (page.next_token.empty()) return Unexpected("ListBucketResult", body);
  return page;
}

absl::StatusOr<UploadsPage> ParseUploadsPage(std::string_view body) {
  pugi::xml_document document;
  const pugi::xml_node root = Root(document, body, "ListMultipartUploadsResult");
  if (!root) return Unexpected("ListMultipartUploadsResult", body);
  const bool encoded = Text(root, "EncodingType") == "url";
  UploadsPage page;
  for (const pugi::xml_node& node : root.children("Upload")) {
    UploadsPage::Upload upload = {Decode(Text(node, "Key"), encoded), Text(node, "UploadId"),
                                  absl::InfiniteFuture()};
    std::string ignored;
    absl::ParseTime(absl::RFC3339_full, Text(node, "Initiated"), &upload.initiated, &ignored);
    page.uploads.push_back(std::move(upload));
  }
  if (Text(root, "IsTruncated") != "true") return page;
  page.next_key = Decode(Text(root, "NextKeyMarker"), encoded);
  page.next_upload_id = Text(root, "NextUploadIdMarker");
  if (page.next_key.empty()) return Unexpected("ListMultipartUploadsResult", body);
  return page;
}

absl::StatusOr<std::string> ParseUploadId(std::string_view body) {
  pugi::xml_document document;
  const pugi::xml_node root = Root(document, body, "InitiateMultipartUploadResult");
  std::string upload_id = Text(root, "UploadId");
  if (upload_id.empty()) return Unexpected("InitiateMultipartUploadResult", body);
  return upload_id;
}

bool IsCompleteUploadResult(std::string_view body) {
  pugi::xml_document document;
  return !Root(document, body, "CompleteMultipartUploadResult").empty();
}

std::string CompleteUploadDocument(const std::vector<UploadedPart>& parts, bool with_checksums) {
  pugi::xml_document document;
  pugi::xml_node root = document.append_child("CompleteMultipartUpload");
  for (const UploadedPart& part : parts) {
    pugi::xml_node node = root.append_child("Part");
    AddText(node, "PartNumber", absl::StrCat(part.number));
    AddText(node, "ETag", part.etag);
    if (with_checksums) AddText(node, "ChecksumCRC32C", part.checksum);
  }
  return ToString(document);
}

std::string DeleteDocument(const std::vector<std::string>& keys) {
  pugi::xml_document document;
  pugi::xml_node root = document.append_child("Delete");
  AddText(root, "Quiet", "true");
  for (const std::string& key : keys) AddText(root.append_child("Object"), "Key", key);
  return ToString(document);
}

std::optional<ErrorDocument> ParseDeleteErrors(std::string_view body) {
  pugi::xml_document document;
  const pugi::xml_node error = Root(document, body, "DeleteResult").child("Error");
  if (!error) return std::nullopt;
  ErrorDocument result = ToError(error);
  result.message = absl::StrCat(Text(error, "Key"), ": ", result.message);
  return result;
}

}  // namespace tessera::s3
