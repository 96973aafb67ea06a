#ifndef TESSERA_THIRD_PARTY_CURL_CURL_H_
#define TESSERA_THIRD_PARTY_CURL_CURL_H_

// The functions of libcurl that Tessera uses, as calls into the machine's libcurl.so.4, which is
// looked for at the first of them: with the thirty libraries that it needs, loading it is a quarter
// of the start of a program. Without it, transfers fail, and say so.

#include <curl/curl.h>

namespace tessera::curl {

CURLcode global_init(long flags);  // NOLINT(google-runtime-int): libcurl's own type
CURL* easy_init();
void easy_cleanup(CURL* handle);
void easy_reset(CURL* handle);
CURLcode easy_setopt(CURL* handle, CURLoption option, ...);
CURLcode easy_getinfo(CURL* handle, CURLINFO info, ...);
const char* easy_strerror(CURLcode code);
CURLM* multi_init();
CURLMcode multi_cleanup(CURLM* multi);
CURLMcode multi_add_handle(CURLM* multi, CURL* handle);
CURLMcode multi_remove_handle(CURLM* multi, CURL* handle);
CURLMcode multi_perform(CURLM* multi, int* running);
CURLMsg* multi_info_read(CURLM* multi, int* queued);
CURLMcode multi_poll(CURLM* multi, curl_waitfd* extra, unsigned extra_count, int timeout_ms,
                     int* ready);
curl_slist* slist_append(curl_slist* list, const char* text);
void slist_free_all(curl_slist* list);

}  // namespace tessera::curl

#endif  // TESSERA_THIRD_PARTY_CURL_CURL_H_
