# One operation with the Ruby driver; prints its error.
require "mongo"

Mongo::Logger.logger.level = Logger::FATAL
uri, operation = ARGV
begin
  orders = Mongo::Client.new(uri).use("shop")[:orders]
  operation == "insert" ? orders.insert_one(x: 1) : orders.find.to_a
  puts "no error"
rescue StandardError => error
  puts "#{error.message} (#{error.class})"
end
$stdout.flush
exit!
