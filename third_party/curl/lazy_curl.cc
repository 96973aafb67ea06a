// The functions of libcurl that Tessera uses, as calls into the machine's libcurl.so.4, which is
// looked for at the first of them. Without it, transfers fail, and say so.

#include <curl/curl.h>
#include <dlfcn.h>

#include <cstdarg>

// libcurl's own signatures.
#pragma clang diagnostic ignored "-Wvarargs"

#undef curl_easy_setopt
#undef curl_easy_getinfo

namespace {

void* Library() {
  static void* const library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
  return library;
}

// Null where the library, or the function in it, is missing.
template <typename Function>
Function* Find(const char* name) {
  return Library() == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(Library(), name));
}

// A handle of no library.
CURL* NoHandle() {
  static char handle;
  return reinterpret_cast<CURL*>(&handle);
}

}  // namespace

#define TESSERA_CURL(name) static auto* const function = Find<decltype(name)>(#name)

extern "C" {

CURLcode curl_global_init(long flags) {  // NOLINT(google-runtime-int): libcurl's own type
  TESSERA_CURL(curl_global_init);
  return function == nullptr ? CURLE_FAILED_INIT : function(flags);
}

CURL* curl_easy_init(void) {
  TESSERA_CURL(curl_easy_init);
  return function == nullptr ? NoHandle() : function();
}

void curl_easy_cleanup(CURL* handle) {
  TESSERA_CURL(curl_easy_cleanup);
  if (function != nullptr) function(handle);
}

void curl_easy_reset(CURL* handle) {
  TESSERA_CURL(curl_easy_reset);
  if (function != nullptr) function(handle);
}

// Each argument that libcurl takes there has the size of a pointer.
CURLcode curl_easy_setopt(CURL* handle, CURLoption option, ...) {  // NOLINT(cert-dcl50-cpp)
  TESSERA_CURL(curl_easy_setopt);
  va_list arguments;
  va_start(arguments, option);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  return function == nullptr ? CURLE_FAILED_INIT : function(handle, option, argument);
}

CURLcode curl_easy_getinfo(CURL* handle, CURLINFO info, ...) {
  TESSERA_CURL(curl_easy_getinfo);
  va_list arguments;
  va_start(arguments, info);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  return function == nullptr ? CURLE_FAILED_INIT : function(handle, info, argument);
}

const char* curl_easy_strerror(CURLcode code) {
  TESSERA_CURL(curl_easy_strerror);
  return function == nullptr ? "libcurl.so.4, which object stores need, is not on this machine"
                             : function(code);
}

CURLM* curl_multi_init(void) {
  TESSERA_CURL(curl_multi_init);
  return function == nullptr ? NoHandle() : function();
}

CURLMcode curl_multi_cleanup(CURLM* multi) {
  TESSERA_CURL(curl_multi_cleanup);
  return function == nullptr ? CURLM_OK : function(multi);
}

CURLMcode curl_multi_add_handle(CURLM* multi, CURL* handle) {
  TESSERA_CURL(curl_multi_add_handle);
  return function == nullptr ? CURLM_INTERNAL_ERROR : function(multi, handle);
}

CURLMcode curl_multi_remove_handle(CURLM* multi, CURL* handle) {
  TESSERA_CURL(curl_multi_remove_handle);
  return function == nullptr ? CURLM_OK : function(multi, handle);
}

CURLMcode curl_multi_perform(CURLM* multi, int* running) {
  TESSERA_CURL(curl_multi_perform);
  return function == nullptr ? CURLM_INTERNAL_ERROR : function(multi, running);
}

CURLMsg* curl_multi_info_read(CURLM* multi, int* queued) {
  TESSERA_CURL(curl_multi_info_read);
  return function == nullptr ? nullptr : function(multi, queued);
}

CURLMcode curl_multi_poll(CURLM* multi, curl_waitfd* extra, unsigned extra_count, int timeout_ms,
                          int* ready) {
  TESSERA_CURL(curl_multi_poll);
  return function == nullptr ? CURLM_INTERNAL_ERROR
                             : function(multi, extra, extra_count, timeout_ms, ready);
}

curl_slist* curl_slist_append(curl_slist* list, const char* text) {
  TESSERA_CURL(curl_slist_append);
  return function == nullptr ? nullptr : function(list, text);
}

void curl_slist_free_all(curl_slist* list) {
  TESSERA_CURL(curl_slist_free_all);
  if (function != nullptr) function(list);
}

}  // extern "C"
