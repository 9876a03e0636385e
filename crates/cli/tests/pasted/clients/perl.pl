# One operation with the Perl driver; prints its error.
use strict;
use MongoDB;

my ($uri, $operation) = @ARGV;
my $done = eval {
    my $orders = MongoDB->connect($uri)->ns("shop.orders");
    $operation eq "insert" ? $orders->insert_one({ x => 1 }) : $orders->find->all;
    1;
};
my $error = $@;
if ($done) { print "no error\n"; }
else { print ref($error) ? ref($error) . ": " . $error->message : $error, "\n"; }
