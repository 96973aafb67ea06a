#include "third_party/curl/curl.h"

#include <dlfcn.h>

#include <cstdarg>
#include <string>

// libcurl's own signatures.
#pragma clang diagnostic ignored "-Wvarargs"

namespace tessera::curl {
namespace {

constexpr char kFile[] = "libcurl.so.4";

struct Library {
  void* handle = nullptr;  // null where it cannot be used
  std::string error;
};

Library Open() {
  void* const handle = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return {.error = dlerror()};
  // The newest of the functions.
  if (dlsym(handle, "curl_multi_poll") != nullptr) return {.handle = handle};
  dlclose(handle);
  return {.error = std::string(kFile) + " is older than 7.66"};
}

const Library& Opened() {
  static const Library library = Open();
  return library;
}

// Null where the library cannot be used.
template <typename Function>
Function* Find(const char* name) {
  void* const handle = Opened().handle;
  return handle == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle, name));
}

// A handle of no library.
CURL* NoHandle() {
  static char handle;
  return reinterpret_cast<CURL*>(&handle);
}

}  // namespace

#define TESSERA_CURL(name) \
  static auto* const function = Find<decltype(::curl_##name)>("curl_" #name)

CURLcode global_init(long flags) {  // NOLINT(google-runtime-int): libcurl's own type
  TESSERA_CURL(global_init);
  return function == nullptr ? CURLE_FAILED_INIT : function(flags);
}

CURL* easy_init() {
  TESSERA_CURL(easy_init);
  return function == nullptr ? NoHandle() : function();
}

void easy_cleanup(CURL* handle) {
  TESSERA_CURL(easy_cleanup);
  if (function != nullptr) function(handle);
}

void easy_reset(CURL* handle) {
  TESSERA_CURL(easy_reset);
  if (function != nullptr) function(handle);
}

// Each argument that libcurl takes there has the size of a pointer.
CURLcode easy_setopt(CURL* handle, CURLoption option, ...) {  // NOLINT(cert-dcl50-cpp)
  TESSERA_CURL(easy_setopt);
  va_list arguments;
  va_start(arguments, option);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  return function == nullptr ? CURLE_FAILED_INIT : function(handle, option, argument);
}

CURLcode easy_getinfo(CURL* handle, CURLINFO info, ...) {
  TESSERA_CURL(easy_getinfo);
  va_list arguments;
  va_start(arguments, info);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  return function == nullptr ? CURLE_FAILED_INIT : function(handle, info, argument);
}

const char* easy_strerror(CURLcode code) {
  TESSERA_CURL(easy_strerror);
  static const std::string error = "object stores need libcurl: " + Opened().error;
  return function == nullptr ? error.c_str() : function(code);
}

CURLM* multi_init() {
  TESSERA_CURL(multi_init);
  return function == nullptr ? NoHandle() : function();
}

CURLMcode multi_cleanup(CURLM* multi) {
  TESSERA_CURL(multi_cleanup);
  return function == nullptr ? CURLM_OK : function(multi);
}

CURLMcode multi_add_handle(CURLM* multi, CURL* handle) {
  TESSERA_CURL(multi_add_handle);
  return function == nullptr ? CURLM_INTERNAL_ERROR : function(multi, handle);
}

CURLMcode multi_remove_handle(CURLM* multi, CURL* handle) {
  TESSERA_CURL(multi_remove_handle);
  return function == nullptr ? CURLM_OK : function(multi, handle);
}

CURLMcode multi_perform(CURLM* multi, int* running) {
  TESSERA_CURL(multi_perform);
  return function == nullptr ? CURLM_INTERNAL_ERROR : function(multi, running);
}

CURLMsg* multi_info_read(CURLM* multi, int* queued) {
  TESSERA_CURL(multi_info_read);
  return function == nullptr ? nullptr : function(multi, queued);
}

CURLMcode multi_poll(CURLM* multi, curl_waitfd* extra, unsigned extra_count, int timeout_ms,
                     int* ready) {
  TESSERA_CURL(multi_poll);
  return function == nullptr ? CURLM_INTERNAL_ERROR
                             : function(multi, extra, extra_count, timeout_ms, ready);
}

curl_slist* slist_append(curl_slist* list, const char* text) {
  TESSERA_CURL(slist_append);
  return function == nullptr ? nullptr : function(list, text);
}

void slist_free_all(curl_slist* list) {
  TESSERA_CURL(slist_free_all);
  if (function != nullptr) function(list);
}

}  // namespace tessera::curl
