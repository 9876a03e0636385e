<?php
// One operation with the extension mongodb; prints its error.
[$program, $uri, $operation] = $argv;
try {
    $manager = new MongoDB\Driver\Manager($uri);
    if ($operation === "insert") {
        $write = new MongoDB\Driver\BulkWrite;
        $write->insert(["x" => 1]);
        $manager->executeBulkWrite("shop.orders", $write);
    } else {
        iterator_to_array($manager->executeQuery("shop.orders", new MongoDB\Driver\Query([])));
    }
    echo "no error\n";
} catch (Throwable $error) {
    echo "PHP Fatal error:  Uncaught " . get_class($error) . ": " . $error->getMessage() . "\n";
}
