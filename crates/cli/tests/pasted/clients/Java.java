// One operation with the Java driver; prints its error.
import com.mongodb.MongoClient;
import com.mongodb.MongoClientURI;
import org.bson.Document;

public class Java {
  public static void main(String[] arguments) {
    java.util.logging.LogManager.getLogManager().reset();
    try {
      MongoClient client = new MongoClient(new MongoClientURI(arguments[0]));
      var orders = client.getDatabase("shop").getCollection("orders");
      if (arguments[1].equals("insert")) {
        orders.insertOne(new Document("x", 1));
      } else {
        orders.find().first();
      }
      System.out.println("no error");
    } catch (Throwable error) {
      System.out.println("Exception in thread \"main\" " + error);
    }
    System.exit(0);
  }
}
