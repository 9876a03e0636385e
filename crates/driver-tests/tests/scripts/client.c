/* libmongoc against the server. Argument: the connection string; QUORATE_PARTS: the parts to run. */

#include <mongoc/mongoc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SENT = 4096 };

static const char *uri_text;
static int checks;

/* The names of the commands that were sent, with a space after each. */
static char sent[MAX_SENT];

static void die(int line, const char *what, const char *details)
{
    fprintf(stderr, "line %d: %s: %s\n", line, what, details);
    exit(1);
}

static void check(int line, bool holds, const char *what)
{
    if (!holds) {
        die(line, "does not hold", what);
    }
    checks++;
}
#define CHECK(condition) check(__LINE__, (condition), #condition)

static void succeed(int line, bool ok, const bson_error_t *error)
{
    if (!ok) {
        die(line, "failed", error->message);
    }
}
#define OK(call) succeed(__LINE__, (call), &error)

/* A document from JSON with single quotes, for readability. Freed by the caller. */
static bson_t *json(const char *text)
{
    char *copy = bson_strdup(text);
    for (char *c = copy; *c; c++) {
        *c = *c == '\'' ? '"' : *c;
    }
    bson_error_t error;
    bson_t *document = bson_new_from_json((const uint8_t *) copy, -1, &error);
    if (!document) {
        die(__LINE__, text, error.message);
    }
    bson_free(copy);
    return document;
}

static int64_t number(const bson_t *document, const char *path)
{
    bson_iter_t top, found;
    if (!bson_iter_init(&top, document) || !bson_iter_find_descendant(&top, path, &found)) {
        char *text = bson_as_relaxed_extended_json(document, NULL);
        die(__LINE__, path, text);
    }
    return bson_iter_as_int64(&found);
}

/* Counts a check: the document is this one. */
static void equal(int line, const bson_t *found, const char *expected_text)
{
    bson_t *expected = json(expected_text);
    char *text = bson_as_relaxed_extended_json(found, NULL);
    char *wanted = bson_as_relaxed_extended_json(expected, NULL);
    if (strcmp(text, wanted) != 0) {
        die(line, wanted, text);
    }
    checks++;
    bson_free(text);
    bson_free(wanted);
    bson_destroy(expected);
}

static void on_started(const mongoc_apm_command_started_t *event)
{
    strncat(sent, mongoc_apm_command_started_get_command_name(event), MAX_SENT - strlen(sent) - 2);
    strcat(sent, " ");
}

static mongoc_client_t *connect_with(const char *user, const char *password, const char *source,
                                     const char *mechanism)
{
    bson_error_t error;
    mongoc_uri_t *uri = mongoc_uri_new_with_error(uri_text, &error);
    OK(uri != NULL);
    if (user) {
        mongoc_uri_set_username(uri, user);
        mongoc_uri_set_password(uri, password);
        mongoc_uri_set_auth_source(uri, source);
    }
    if (mechanism) {
        mongoc_uri_set_auth_mechanism(uri, mechanism);
    }
    mongoc_client_t *client = mongoc_client_new_from_uri(uri);
    mongoc_client_set_error_api(client, MONGOC_ERROR_API_VERSION_2);
    mongoc_apm_callbacks_t *callbacks = mongoc_apm_callbacks_new();
    mongoc_apm_set_command_started_cb(callbacks, on_started);
    mongoc_client_set_apm_callbacks(client, callbacks, NULL);
    mongoc_apm_callbacks_destroy(callbacks);
    mongoc_uri_destroy(uri);
    return client;
}

/* Runs a command that must succeed. The reply is destroyed by the caller. */
static void run(mongoc_client_t *client, const char *db, const char *command_text, bson_t *reply)
{
    bson_error_t error;
    bson_t *command = json(command_text);
    OK(mongoc_client_command_simple(client, db, command, NULL, reply, &error));
    bson_destroy(command);
}

static void run_only(mongoc_client_t *client, const char *db, const char *command_text)
{
    bson_t reply;
    run(client, db, command_text, &reply);
    bson_destroy(&reply);
}

/* Counts a check: the command is refused with this code. */
static void refused(mongoc_client_t *client, const char *db, const char *command_text, uint32_t code)
{
    bson_error_t error = {0};
    bson_t *command = json(command_text);
    CHECK(!mongoc_client_command_simple(client, db, command, NULL, NULL, &error));
    if (error.code != code) {
        die(__LINE__, command_text, error.message);
    }
    checks++;
    bson_destroy(command);
}

/* The number of documents that a cursor gives; the last one, if asked for, is copied. */
static int drain(mongoc_cursor_t *cursor, bson_t *last)
{
    const bson_t *document;
    bson_error_t error;
    int count = 0;
    while (mongoc_cursor_next(cursor, &document)) {
        count++;
        if (last) {
            bson_reinit(last);
            bson_concat(last, document);
        }
    }
    succeed(__LINE__, !mongoc_cursor_error(cursor, &error), &error);
    mongoc_cursor_destroy(cursor);
    return count;
}

static mongoc_cursor_t *find(mongoc_collection_t *things, const char *filter_text,
                             const char *options_text)
{
    bson_t *filter = json(filter_text);
    bson_t *options = json(options_text);
    mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(things, filter, options, NULL);
    bson_destroy(filter);
    bson_destroy(options);
    return cursor;
}

static bool insert(mongoc_collection_t *things, const char *text, bson_error_t *error)
{
    bson_t *document = json(text);
    bool ok = mongoc_collection_insert_one(things, document, NULL, NULL, error);
    bson_destroy(document);
    return ok;
}

static void crud(mongoc_collection_t *things)
{
    bson_error_t error;
    bson_t reply, last = BSON_INITIALIZER;
    OK(insert(things, "{'_id': 0, 'a': 0}", &error));
    bson_t many[999];
    const bson_t *pointers[999];
    for (int n = 0; n < 999; n++) {
        bson_init(&many[n]);
        BSON_APPEND_INT32(&many[n], "_id", n + 1);
        BSON_APPEND_INT32(&many[n], "a", (n + 1) % 7);
        pointers[n] = &many[n];
    }
    OK(mongoc_collection_insert_many(things, pointers, 999, NULL, &reply, &error));
    CHECK(number(&reply, "insertedCount") == 999);
    bson_destroy(&reply);
    CHECK(!insert(things, "{'_id': 1}", &error) && error.code == 11000);
    CHECK(drain(find(things, "{'_id': 8}", "{}"), &last) == 1);
    equal(__LINE__, &last, "{'_id': 8, 'a': 1}");
    bson_t *three = json("{'a': 3}");
    CHECK(mongoc_collection_count_documents(things, three, NULL, NULL, NULL, &error) == 143);
    CHECK(mongoc_collection_estimated_document_count(things, NULL, NULL, NULL, &error) == 1000);
    bson_t *one = json("{'_id': 1}"), *change = json("{'$set': {'b.c': 1}, '$inc': {'a': 10}}");
    OK(mongoc_collection_update_one(things, one, change, NULL, &reply, &error));
    CHECK(number(&reply, "modifiedCount") == 1);
    bson_destroy(&reply);
    CHECK(drain(find(things, "{'_id': 1}", "{}"), &last) == 1);
    equal(__LINE__, &last, "{'_id': 1, 'a': 11, 'b': {'c': 1}}");
    bson_t *two = json("{'a': 2}"), *push = json("{'$push': {'l': 1}}");
    OK(mongoc_collection_update_many(things, two, push, NULL, &reply, &error));
    CHECK(number(&reply, "modifiedCount") == 143);
    bson_destroy(&reply);
    bson_t *fresh = json("{'_id': 'new'}"), *body = json("{'r': 1}"), *upsert = json("{'upsert': true}");
    OK(mongoc_collection_replace_one(things, fresh, body, upsert, &reply, &error));
    CHECK(bson_has_field(&reply, "upsertedId"));
    bson_destroy(&reply);
    bson_t *five = json("{'$mul': {'r': 5}}");
    OK(mongoc_collection_find_and_modify(things, fresh, NULL, five, NULL, false, false, true, &reply, &error));
    CHECK(number(&reply, "value.r") == 5);
    bson_destroy(&reply);
    OK(mongoc_collection_delete_one(things, fresh, NULL, &reply, &error));
    CHECK(number(&reply, "deletedCount") == 1);
    bson_destroy(&reply);
    bson_t *high = json("{'_id': {'$gte': 990}}");
    OK(mongoc_collection_delete_many(things, high, NULL, &reply, &error));
    CHECK(number(&reply, "deletedCount") == 10);
    bson_destroy(&reply);
    bson_t *used[] = {three, one, change, two, push, fresh, body, upsert, five, high};
    for (size_t place = 0; place < sizeof used / sizeof *used; place++) {
        bson_destroy(used[place]);
    }
    for (int n = 0; n < 999; n++) {
        bson_destroy(&many[n]);
    }
    bson_destroy(&last);
}

static void cursors(mongoc_client_t *client, mongoc_collection_t *things)
{
    bson_t reply, last = BSON_INITIALIZER;
    *sent = 0;
    CHECK(drain(find(things, "{}", "{'sort': {'_id': -1}, 'batchSize': 100}"), &last) == 990);
    equal(__LINE__, &last, "{'_id': 0, 'a': 0}");
    CHECK(strncmp(sent, "find getMore getMore ", 21) == 0);
    *sent = 0;
    const bson_t *document;
    mongoc_cursor_t *left = find(things, "{}", "{'batchSize': 2}");
    CHECK(mongoc_cursor_next(left, &document));
    mongoc_cursor_destroy(left);
    CHECK(strcmp(sent, "find killCursors ") == 0);
    run(client, "clients", "{'find': 'things', 'batchSize': 2}", &reply);
    long long opened = number(&reply, "cursor.id");
    bson_destroy(&reply);
    char command[200];
    snprintf(command, sizeof command,
             "{'killCursors': 'things', 'cursors': [{'$numberLong': '%lld'}]}", opened);
    run(client, "clients", command, &reply);
    CHECK(number(&reply, "cursorsKilled.0") == opened);
    bson_destroy(&reply);
    snprintf(command, sizeof command,
             "{'getMore': {'$numberLong': '%lld'}, 'collection': 'things'}", opened);
    refused(client, "clients", command, 43);
    bson_destroy(&last);
}

static void indexes(mongoc_client_t *client, mongoc_collection_t *things)
{
    bson_error_t error;
    bson_t reply, last = BSON_INITIALIZER;
    run_only(client, "clients",
             "{'createIndexes': 'things', 'indexes': [{'key': {'a': 1, '_id': -1}, 'name': 'first'},"
             " {'key': {'u': 1}, 'name': 'u_1', 'unique': true, 'sparse': true}]}");
    CHECK(drain(find(things, "{'a': 3, '_id': {'$lt': 20}}", "{}"), &last) == 3);
    equal(__LINE__, &last, "{'_id': 3, 'a': 3}");
    run(client, "clients", "{'explain': {'find': 'things', 'filter': {'a': 3}}}", &reply);
    bson_iter_t top, stage;
    CHECK(bson_iter_init(&top, &reply)
          && bson_iter_find_descendant(&top, "queryPlanner.winningPlan.inputStage.indexName", &stage)
          && strcmp(bson_iter_utf8(&stage, NULL), "first") == 0);
    bson_destroy(&reply);
    OK(insert(things, "{'_id': 'u', 'u': 5}", &error));
    CHECK(!insert(things, "{'u': 5}", &error) && error.code == 11000);
    CHECK(drain(mongoc_collection_find_indexes_with_opts(things, NULL), NULL) == 3);
    OK(mongoc_collection_drop_index(things, "u_1", &error));
    CHECK(drain(mongoc_collection_find_indexes_with_opts(things, NULL), NULL) == 2);
    bson_t *extra = json("{'_id': 'u'}");
    OK(mongoc_collection_delete_one(things, extra, NULL, NULL, &error));
    bson_destroy(extra);
    bson_destroy(&last);
}

static int aggregate(mongoc_collection_t *things, const char *text, const char *options_text, bson_t *last)
{
    bson_t *pipeline = json(text), *options = json(options_text);
    mongoc_cursor_t *cursor =
        mongoc_collection_aggregate(things, MONGOC_QUERY_NONE, pipeline, options, NULL);
    bson_destroy(pipeline);
    bson_destroy(options);
    return drain(cursor, last);
}

static void aggregation(mongoc_client_t *client, mongoc_collection_t *things)
{
    bson_t reply, last = BSON_INITIALIZER;
    run(client, "clients", "{'distinct': 'things', 'key': 'a'}", &reply);
    CHECK(number(&reply, "values.6") == 6 && !bson_has_field(&reply, "values.8"));
    bson_destroy(&reply);
    run_only(client, "clients", "{'insert': 'names', 'documents': [{'_id': 3, 'name': 'three'}]}");
    const char *joined =
        "{'pipeline': [{'$match': {'_id': 10}},"
        " {'$lookup': {'from': 'names', 'localField': 'a', 'foreignField': '_id', 'as': 'names'}},"
        " {'$unwind': '$names'}, {'$replaceWith': {'name': '$names.name'}}]}";
    CHECK(aggregate(things, joined, "{}", &last) == 1);
    equal(__LINE__, &last, "{'name': 'three'}");
    const char *totals =
        "{'pipeline': [{'$match': {'a': {'$lt': 3}}},"
        " {'$group': {'_id': '$a', 'n': {'$sum': 1}, 'most': {'$max': '$_id'}}}, {'$sort': {'_id': 1}}]}";
    CHECK(aggregate(things, totals, "{}", &last) == 3);
    equal(__LINE__, &last, "{'_id': 2, 'n': 142, 'most': 989}");
    CHECK(aggregate(things, "{'pipeline': [{'$project': {'a': 1}}]}", "{'batchSize': 50}", NULL) == 990);
    bson_destroy(&last);
}

static void bulk_writes(mongoc_client_t *client)
{
    bson_error_t error;
    bson_t reply;
    mongoc_collection_t *bulk = mongoc_client_get_collection(client, "clients", "bulk");
    bson_t *one = json("{'_id': 1}"), *two = json("{'_id': 2}"), *y = json("{'y': 1}");
    bson_t *set = json("{'$set': {'x': 1}}"), *upsert = json("{'upsert': true}");
    mongoc_bulk_operation_t *mixed = mongoc_collection_create_bulk_operation_with_opts(bulk, NULL);
    OK(mongoc_bulk_operation_insert_with_opts(mixed, one, NULL, &error));
    OK(mongoc_bulk_operation_update_one_with_opts(mixed, one, set, NULL, &error));
    OK(mongoc_bulk_operation_replace_one_with_opts(mixed, two, y, upsert, &error));
    OK(mongoc_bulk_operation_remove_one_with_opts(mixed, one, NULL, &error));
    OK(mongoc_bulk_operation_execute(mixed, &reply, &error) != 0);
    CHECK(number(&reply, "nInserted") == 1);
    CHECK(number(&reply, "nModified") == 1);
    CHECK(number(&reply, "nUpserted") == 1);
    CHECK(number(&reply, "nRemoved") == 1);
    bson_destroy(&reply);
    mongoc_bulk_operation_destroy(mixed);
    bson_t *unordered = json("{'ordered': false}"), *five = json("{'_id': 5}"), *six = json("{'_id': 6}");
    mongoc_bulk_operation_t *twice = mongoc_collection_create_bulk_operation_with_opts(bulk, unordered);
    OK(mongoc_bulk_operation_insert_with_opts(twice, five, NULL, &error));
    OK(mongoc_bulk_operation_insert_with_opts(twice, five, NULL, &error));
    OK(mongoc_bulk_operation_insert_with_opts(twice, six, NULL, &error));
    CHECK(mongoc_bulk_operation_execute(twice, &reply, &error) == 0);
    CHECK(number(&reply, "nInserted") == 2);
    CHECK(number(&reply, "writeErrors.0.index") == 1);
    CHECK(number(&reply, "writeErrors.0.code") == 11000);
    bson_destroy(&reply);
    mongoc_bulk_operation_destroy(twice);
    bson_t *used[] = {one, two, y, set, upsert, unordered, five, six};
    for (size_t place = 0; place < sizeof used / sizeof *used; place++) {
        bson_destroy(used[place]);
    }
    mongoc_collection_destroy(bulk);
}

static void documents(void)
{
    bson_t reply;
    mongoc_client_t *client = connect_with(NULL, NULL, NULL, NULL);
    run(client, "admin", "{'buildInfo': 1}", &reply);
    CHECK(number(&reply, "versionArray.0") == 7);
    bson_destroy(&reply);
    run_only(client, "clients", "{'dropDatabase': 1}");
    mongoc_collection_t *things = mongoc_client_get_collection(client, "clients", "things");
    crud(things);
    cursors(client, things);
    indexes(client, things);
    aggregation(client, things);
    bulk_writes(client);
    mongoc_collection_destroy(things);
    mongoc_client_destroy(client);
}

static void fail(mongoc_client_t *client, const char *data)
{
    char command[400];
    snprintf(command, sizeof command,
             "{'configureFailPoint': 'failCommand', 'mode': {'times': 1}, 'data': %s}", data);
    run_only(client, "admin", command);
    *sent = 0;
}

static void retries(void)
{
    bson_error_t error;
    bson_t reply, last = BSON_INITIALIZER;
    mongoc_client_t *client = connect_with(NULL, NULL, NULL, NULL);
    run(client, "admin", "{'hello': 1}", &reply);
    bool in_set = bson_has_field(&reply, "setName");
    bson_destroy(&reply);
    mongoc_collection_t *things = mongoc_client_get_collection(client, "clients", "retried");
    mongoc_collection_drop(things, NULL);
    OK(insert(things, "{'_id': 1}", &error));
    const char *troubles[] = {"{'failCommands': ['find'], 'closeConnection': true}",
                              "{'failCommands': ['find'], 'errorCode': 11600}"};
    for (int place = 0; place < 2; place++) {
        fail(client, troubles[place]);
        CHECK(drain(find(things, "{}", "{}"), NULL) == 1);
        CHECK(strcmp(sent, "find find ") == 0);
    }
    fail(client, "{'failCommands': ['find'], 'errorCode': 2}");
    const bson_t *document;
    mongoc_cursor_t *cursor = find(things, "{}", "{}");
    CHECK(!mongoc_cursor_next(cursor, &document));
    CHECK(mongoc_cursor_error(cursor, &error) && error.code == 2);
    mongoc_cursor_destroy(cursor);
    CHECK(strcmp(sent, "find ") == 0);
    fail(client, "{'failCommands': ['insert'], 'closeConnection': true}");
    if (in_set) {
        OK(insert(things, "{'_id': 2}", &error));
        CHECK(strcmp(sent, "insert insert ") == 0);
        fail(client, "{'failCommands': ['update'], 'errorCode': 91, 'errorLabels': ['RetryableWriteError']}");
        bson_t *two = json("{'_id': 2}"), *change = json("{'$inc': {'n': 1}}");
        OK(mongoc_collection_update_one(things, two, change, NULL, NULL, &error));
        CHECK(strcmp(sent, "update update ") == 0);
        CHECK(drain(find(things, "{}", "{}"), &last) == 2);
        equal(__LINE__, &last, "{'_id': 2, 'n': 1}");
        bson_destroy(two);
        bson_destroy(change);
    } else {
        CHECK(!insert(things, "{'_id': 2}", &error) && error.domain == MONGOC_ERROR_STREAM);
        CHECK(strcmp(sent, "insert ") == 0);
        CHECK(drain(find(things, "{}", "{}"), NULL) == 1);
    }
    bson_destroy(&last);
    mongoc_collection_destroy(things);
    mongoc_client_destroy(client);
}

static void round_trip(void)
{
    bson_error_t error;
    mongoc_client_t *client = connect_with(NULL, NULL, NULL, NULL);
    run_only(client, "clients", "{'ping': 1}");
    mongoc_collection_t *packed = mongoc_client_get_collection(client, "clients", "packed");
    mongoc_collection_drop(packed, NULL);
    char text[1001];
    memset(text, 'x', 1000);
    text[1000] = 0;
    for (int n = 0; n < 30; n++) {
        bson_t *document = BCON_NEW("text", BCON_UTF8(text));
        OK(mongoc_collection_insert_one(packed, document, NULL, NULL, &error));
        bson_destroy(document);
    }
    const bson_t *document;
    size_t length = 0;
    mongoc_cursor_t *cursor = find(packed, "{}", "{}");
    while (mongoc_cursor_next(cursor, &document)) {
        bson_iter_t found;
        uint32_t one = 0;
        if (bson_iter_init_find(&found, document, "text")) {
            bson_iter_utf8(&found, &one);
        }
        length += one;
    }
    CHECK(!mongoc_cursor_error(cursor, &error));
    CHECK(length == 30000);
    mongoc_cursor_destroy(cursor);
    mongoc_collection_destroy(packed);
    mongoc_client_destroy(client);
}

/* Counts checks: this user is logged in. */
static void check_user(const bson_t *status, const char *name, const char *source)
{
    const char *paths[] = {"authInfo.authenticatedUsers.0.user", "authInfo.authenticatedUsers.0.db"};
    const char *expected[] = {name, source};
    for (int place = 0; place < 2; place++) {
        bson_iter_t top, found;
        CHECK(bson_iter_init(&top, status) && bson_iter_find_descendant(&top, paths[place], &found)
              && strcmp(bson_iter_utf8(&found, NULL), expected[place]) == 0);
    }
}

static void login(void)
{
    bson_t reply;
    mongoc_client_t *stranger = connect_with(NULL, NULL, NULL, NULL);
    refused(stranger, "clients", "{'insert': 'things', 'documents': [{}]}", 13);
    run_only(stranger, "admin", "{'createUser': 'root', 'pwd': 'secret', 'roles': ['root']}");
    refused(stranger, "admin", "{'createUser': 'b', 'pwd': 'b', 'roles': []}", 13);
    mongoc_client_destroy(stranger);
    const char *mechanisms[] = {NULL, "SCRAM-SHA-1", "SCRAM-SHA-256"};
    for (int place = 0; place < 3; place++) {
        mongoc_client_t *root = connect_with("root", "secret", "admin", mechanisms[place]);
        run(root, "admin", "{'connectionStatus': 1}", &reply);
        check_user(&reply, "root", "admin");
        bson_destroy(&reply);
        mongoc_client_destroy(root);
        mongoc_client_t *wrong = connect_with("root", "wrong", "admin", mechanisms[place]);
        /* This client has a code of its own for a refused login. */
        refused(wrong, "clients", "{'find': 'things'}", MONGOC_ERROR_CLIENT_AUTHENTICATE);
        mongoc_client_destroy(wrong);
    }
    mongoc_client_t *root = connect_with("root", "secret", "admin", NULL);
    run_only(root, "clients", "{'insert': 'things', 'documents': [{'_id': 1}]}");
    run_only(root, "clients", "{'createUser': 'reader', 'pwd': 'p\xc3\xa9', 'roles': ['read']}");
    mongoc_client_destroy(root);
    mongoc_client_t *reader = connect_with("reader", "p\xc3\xa9", "clients", NULL);
    run(reader, "clients", "{'find': 'things'}", &reply);
    CHECK(number(&reply, "cursor.firstBatch.0._id") == 1);
    bson_destroy(&reply);
    refused(reader, "clients", "{'insert': 'things', 'documents': [{}]}", 13);
    mongoc_client_destroy(reader);
}

static void certificate(void)
{
    bson_t reply;
    mongoc_client_t *client = connect_with(NULL, NULL, NULL, NULL);
    run(client, "admin", "{'connectionStatus': 1}", &reply);
    check_user(&reply, "CN=alice,O=Quorate", "$external");
    bson_destroy(&reply);
    run_only(client, "clients", "{'insert': 'things', 'documents': [{'_id': 1}]}");
    run(client, "clients", "{'find': 'things'}", &reply);
    CHECK(number(&reply, "cursor.firstBatch.0._id") == 1);
    bson_destroy(&reply);
    refused(client, "others", "{'insert': 'things', 'documents': [{}]}", 13);
    mongoc_client_destroy(client);
}

/* Moves 4 from the first account to the second. */
static bool transfer(mongoc_client_session_t *session, void *context, bson_t **reply, bson_error_t *error)
{
    mongoc_collection_t *accounts = context;
    bson_t options = BSON_INITIALIZER;
    bool ok = mongoc_client_session_append(session, &options, error);
    const char *steps[][2] = {{"{'_id': 'a'}", "{'$inc': {'n': -4}}"}, {"{'_id': 'b'}", "{'$inc': {'n': 4}}"}};
    *reply = NULL;
    for (int step = 0; ok && step < 2; step++) {
        bson_t *which = json(steps[step][0]), *change = json(steps[step][1]);
        if (*reply) {
            bson_destroy(*reply);
        }
        *reply = bson_new();
        bson_t answer;
        ok = mongoc_collection_update_one(accounts, which, change, &options, &answer, error);
        bson_concat(*reply, &answer);
        bson_destroy(&answer);
        bson_destroy(which);
        bson_destroy(change);
    }
    bson_destroy(&options);
    return ok;
}

static int64_t balance(mongoc_collection_t *accounts, mongoc_client_session_t *session)
{
    bson_error_t error;
    bson_t options = BSON_INITIALIZER;
    if (session) {
        OK(mongoc_client_session_append(session, &options, &error));
    }
    bson_t *which = json("{'_id': 'a'}");
    mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(accounts, which, &options, NULL);
    const bson_t *found;
    bool any = mongoc_cursor_next(cursor, &found);
    OK(!mongoc_cursor_error(cursor, &error));
    CHECK(any);
    int64_t n = number(found, "n");
    mongoc_cursor_destroy(cursor);
    bson_destroy(which);
    bson_destroy(&options);
    return n;
}

static void transactions(void)
{
    bson_error_t error;
    bson_t reply, *answer = NULL;
    mongoc_client_t *client = connect_with(NULL, NULL, NULL, NULL);
    run_only(client, "transactions", "{'dropDatabase': 1}");
    run_only(client, "transactions",
             "{'insert': 'accounts', 'documents': [{'_id': 'a', 'n': 10}, {'_id': 'b', 'n': 0}]}");
    mongoc_collection_t *accounts = mongoc_client_get_collection(client, "transactions", "accounts");
    mongoc_client_session_t *session = mongoc_client_start_session(client, NULL, &error);
    mongoc_client_session_t *other = mongoc_client_start_session(client, NULL, &error);
    OK(mongoc_client_session_with_transaction(session, transfer, NULL, accounts, &reply, &error));
    bson_destroy(&reply);
    CHECK(balance(accounts, NULL) == 6);
    OK(mongoc_client_session_start_transaction(session, NULL, &error));
    OK(transfer(session, accounts, &answer, &error));
    bson_destroy(answer);
    CHECK(balance(accounts, session) == 2);
    CHECK(balance(accounts, NULL) == 6);
    /* The first updater wins; the second is told at once. */
    OK(mongoc_client_session_start_transaction(other, NULL, &error));
    CHECK(!transfer(other, accounts, &answer, &error));
    CHECK(error.code == 112);
    CHECK(mongoc_error_has_label(answer, "TransientTransactionError"));
    bson_destroy(answer);
    OK(mongoc_client_session_abort_transaction(other, &error));
    OK(mongoc_client_session_commit_transaction(session, NULL, &error));
    OK(mongoc_client_session_commit_transaction(session, NULL, &error));
    CHECK(balance(accounts, NULL) == 2);
    mongoc_client_session_destroy(other);
    mongoc_client_session_destroy(session);
    mongoc_collection_destroy(accounts);
    mongoc_client_destroy(client);
}

/* The next event must be of this type. Its token is copied if a place is given. */
static void event(int line, mongoc_change_stream_t *stream, const char *type, bson_t *token)
{
    const bson_t *found, *details;
    bson_error_t error;
    bson_iter_t iter, id;
    while (!mongoc_change_stream_next(stream, &found)) {
        if (mongoc_change_stream_error_document(stream, &error, &details)) {
            die(line, type, error.message);
        }
    }
    if (!bson_iter_init_find(&iter, found, "operationType") || !bson_iter_init_find(&id, found, "_id")) {
        die(line, type, "the event has no type or no token");
    }
    check(line, strcmp(bson_iter_utf8(&iter, NULL), type) == 0, type);
    if (token) {
        bson_append_iter(token, "resumeAfter", -1, &id);
    }
}
#define EVENT(stream, type, token) event(__LINE__, stream, type, token)

static void watch(void)
{
    bson_t none = BSON_INITIALIZER, from = BSON_INITIALIZER;
    mongoc_client_t *client = connect_with(NULL, NULL, NULL, NULL);
    run_only(client, "watched", "{'dropDatabase': 1}");
    mongoc_collection_t *orders = mongoc_client_get_collection(client, "watched", "orders");
    mongoc_database_t *database = mongoc_client_get_database(client, "watched");
    mongoc_change_stream_t *streams[] = {mongoc_collection_watch(orders, &none, NULL),
                                         mongoc_database_watch(database, &none, NULL),
                                         mongoc_client_watch(client, &none, NULL)};
    run_only(client, "watched", "{'insert': 'orders', 'documents': [{'_id': 1, 'n': 1}]}");
    run_only(client, "watched", "{'update': 'orders', 'updates': [{'q': {'_id': 1}, 'u': {'$inc': {'n': 1}}}]}");
    run_only(client, "watched", "{'update': 'orders', 'updates': [{'q': {'_id': 1}, 'u': {'r': 1}}]}");
    run_only(client, "watched", "{'delete': 'orders', 'deletes': [{'q': {'_id': 1}, 'limit': 1}]}");
    for (int place = 0; place < 3; place++) {
        EVENT(streams[place], "insert", place == 0 ? &from : NULL);
        EVENT(streams[place], "update", NULL);
        EVENT(streams[place], "replace", NULL);
        EVENT(streams[place], "delete", NULL);
        mongoc_change_stream_destroy(streams[place]);
    }
    /* From the first event on, and across a connection that breaks. */
    mongoc_change_stream_t *stream = mongoc_collection_watch(orders, &none, &from);
    EVENT(stream, "update", NULL);
    run_only(client, "admin",
             "{'configureFailPoint': 'failCommand', 'mode': {'times': 1},"
             " 'data': {'failCommands': ['getMore'], 'closeConnection': true}}");
    run_only(client, "watched", "{'insert': 'orders', 'documents': [{'_id': 2}]}");
    EVENT(stream, "replace", NULL);
    EVENT(stream, "delete", NULL);
    EVENT(stream, "insert", NULL);
    run_only(client, "watched", "{'drop': 'orders'}");
    EVENT(stream, "drop", NULL);
    EVENT(stream, "invalidate", NULL);
    mongoc_change_stream_destroy(stream);
    mongoc_collection_destroy(orders);
    mongoc_database_destroy(database);
    mongoc_client_destroy(client);
    bson_destroy(&from);
}

int main(int count, char **arguments)
{
    const char *parts = getenv("QUORATE_PARTS");
    if (count != 2 || !parts) {
        die(__LINE__, "misuse", "one argument, and the variable QUORATE_PARTS");
    }
    uri_text = arguments[1];
    mongoc_init();
    char *rest = bson_strdup(parts), *start = rest;
    for (char *part = strtok(rest, ","); part; part = strtok(NULL, ",")) {
        if (strcmp(part, "documents") == 0) {
            documents();
        } else if (strcmp(part, "retries") == 0) {
            retries();
        } else if (strcmp(part, "transactions") == 0) {
            transactions();
        } else if (strcmp(part, "watch") == 0) {
            watch();
        } else if (strcmp(part, "round-trip") == 0) {
            round_trip();
        } else if (strcmp(part, "login") == 0) {
            login();
        } else if (strcmp(part, "certificate") == 0) {
            certificate();
        } else {
            die(__LINE__, "no such part", part);
        }
    }
    bson_free(start);
    mongoc_cleanup();
    printf("checks: %d\n", checks);
    return 0;
}
