/* One operation with libmongoc; prints its error. */
#include <mongoc/mongoc.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **arguments) {
  bson_error_t error = {0};
  bson_t nothing = BSON_INITIALIZER, document = BSON_INITIALIZER;
  const bson_t *found;
  bool done = false;
  mongoc_init();
  mongoc_uri_t *uri = mongoc_uri_new_with_error(arguments[1], &error);
  mongoc_client_t *client = uri ? mongoc_client_new_from_uri_with_error(uri, &error) : NULL;
  if (client) {
    mongoc_collection_t *orders = mongoc_client_get_collection(client, "shop", "orders");
    BSON_APPEND_INT32(&document, "x", 1);
    if (!strcmp(arguments[2], "insert")) {
      done = mongoc_collection_insert_one(orders, &document, NULL, NULL, &error);
    } else {
      mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(orders, &nothing, NULL, NULL);
      while (mongoc_cursor_next(cursor, &found)) {
      }
      done = !mongoc_cursor_error(cursor, &error);
    }
  }
  printf("%s\n", done ? "no error" : error.message);
  return 0;
}
